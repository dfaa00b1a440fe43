"""`disagg-node tune` on a real vLLM engine: its own clock, its own prefix cache, its own limits."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from disagg_cluster.tune.prefill_prober import step_shape
from support.children import free_port
from support.running_node import RunningNode, running_node
from support.vllm_nodes import aggregated_node, truth_file
from support.vllm_pair import read_truth
from support.vllm_session import Say

pytestmark = pytest.mark.vllm_long

TUNE = (sys.executable, "-m", "disagg_cluster.cli", "tune")
STEP_TOKENS = 256
PROMPT = 64
REQUESTS = 8
SECONDS = 900.0


@pytest.fixture(scope="module")
def node(vllm_python: Path, wide_model: Path, short_folder: Path) -> Iterator[RunningNode]:
    run_dir = short_folder / "tune"
    run_dir.mkdir()
    node_file = aggregated_node(
        python=vllm_python,
        model=wide_model,
        run_dir=run_dir,
        metrics_port=free_port(),
        port=free_port(),
        args=("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", str(REQUESTS)),
    )
    with running_node(node_file, run_dir) as running:
        running.wait_ready(600)
        yield running


def tuned(node: RunningNode, phase: str, *options: str) -> tuple[dict[str, Any], str]:
    """What was found of a phase, and the JSON that says so."""
    command = [*TUNE, phase, "--engine", "mixed-0", "-c", str(node.folder / "node.yaml"), *options]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)[phase]
    assert isinstance(found, dict)
    return found, done.stdout


def test_the_prefill_curve_of_a_real_engine_that_schedules_ahead_is_what_its_worker_says(
    node: RunningNode, say: Say
) -> None:
    """The curve ends at the limit of the engine, and no prompt hits the prefix cache."""
    found, text = tuned(node, "prefill", "--prompt-tokens", str(PROMPT), "--largest", "1024")

    say(text)
    (length,) = found["lengths"]
    sizes = [step["size"] for step in length["steps"]]
    rates = [step["size"] / step["seconds"] for step in length["steps"]]
    assert found["times"] == "tokens"
    errors = [
        abs(step["seconds"] / true_seconds(node, step["size"]) - 1) for step in length["steps"]
    ]
    say(f"off the worker's own times by {[round(error, 3) for error in errors]}")
    assert median(errors) < 0.05
    assert max(errors) < 0.2
    assert sizes[-1] == STEP_TOKENS
    assert rates[0] < rates[-1]
    assert hits(node) == 0


def true_seconds(node: RunningNode, size: int) -> float:
    """How long steps of the shape that was timed for a size held the worker, for that size."""
    tokens = step_shape(size, PROMPT).size
    steps = read_truth(truth_file(node.folder, "mixed-0"))
    held = [step.held_ns / 1e9 for step in steps if step.context_tokens == tokens]
    return median(held) * size / tokens


def test_a_decode_batch_is_limited_by_the_concurrency_of_the_engine(
    node: RunningNode, say: Say
) -> None:
    options = ("--itl", "20s", "--context-tokens", "64", "--largest", "32")

    found, text = tuned(node, "decode", *options)

    say(text)
    (context,) = found["contexts"]
    assert context["crowded_at"] == REQUESTS
    assert found["max_num_seqs"] == REQUESTS


def hits(node: RunningNode) -> float:
    """Tokens that the engine's prefix cache has answered."""
    with urllib.request.urlopen(node.url("mixed-0") + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
    return sum(float(line.rpartition(" ")[2]) for line in found)
