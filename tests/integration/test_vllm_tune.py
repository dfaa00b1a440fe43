"""`disagg-node tune` on a real vLLM engine: its own clock, its own prefix cache, its own limits."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.children import free_port
from support.running_node import RunningNode, running_node
from support.vllm_nodes import aggregated_node
from support.vllm_session import Say

pytestmark = pytest.mark.vllm_long

TUNE = (sys.executable, "-m", "disagg_cluster.cli", "tune")
STEP_TOKENS = 256
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


def test_the_prefill_curve_of_a_real_engine_is_timed_by_its_own_page(
    node: RunningNode, say: Say
) -> None:
    """The curve ends at the limit of the engine, and no prompt hits the prefix cache."""
    found, text = tuned(node, "prefill", "--prompt-tokens", "64", "--largest", "1024")

    say(text)
    (length,) = found["lengths"]
    sizes = [step["size"] for step in length["steps"]]
    rates = [step["size"] / step["seconds"] for step in length["steps"]]
    assert found["times"] == "page"
    assert sizes[-1] == STEP_TOKENS
    assert rates[0] < rates[-1]
    assert hits(node) == 0


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
