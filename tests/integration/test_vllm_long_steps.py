"""A real vLLM engine whose steps begin from rest and take long, and one that computes anew."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.children import free_port
from support.running_node import RunningNode, running_node, wait_for
from support.vllm_nodes import LONG_MODEL, MODEL_NAME, aggregated_node, truth_file
from support.vllm_pair import TruthStep, read_truth
from support.vllm_session import Say, make_model

pytestmark = pytest.mark.vllm_long

ENGINE = "mixed-0"
REQUEST_SECONDS = 280.0
# Some of the tiny model's vocabulary, the special ones left out.
TOKENS = range(3, 256)


@contextmanager
def engine(
    python: Path, model: Path, run_dir: Path, args: tuple[str, ...]
) -> Iterator[RunningNode]:
    """A daemon with one engine that keeps no prefixes: every prompt is computed."""
    node_file = aggregated_node(
        python=python,
        model=model,
        run_dir=run_dir,
        metrics_port=free_port(),
        port=free_port(),
        args=("--no-enable-prefix-caching", *args),
    )
    with running_node(node_file, run_dir) as node:
        node.wait_ready()
        yield node


def ask(
    node: RunningNode, prompt: list[int], max_tokens: int, patience: float = REQUEST_SECONDS
) -> int:
    """Complete a prompt of tokens; return how many were written. `TimeoutError`: it gave up."""
    body = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{node.url(ENGINE)}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=patience) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def stamped(run_dir: Path) -> list[TruthStep]:
    """The steps that the worker stamped itself."""
    return read_truth(truth_file(run_dir, ENGINE))


def long_prompts(steps: list[TruthStep]) -> int:
    """How many prompts were computed, each in a step of its own."""
    return sum(step.context_tokens > 1000 for step in steps)


def test_twenty_second_prompts_after_idle_are_accounted_as_the_worker_measured(
    vllm_python: Path, folder: Path, say: Say
) -> None:
    """Each prompt is accounted once, at its own time, and the phase ratio is that of the worker.

    Every prompt is one step, and before it the engine was idle for longer than a heartbeat.
    """
    model = make_model(vllm_python, folder / "model", LONG_MODEL)
    dice = random.Random(20261123)
    whole = ("--max-model-len", "2048", "--max-num-batched-tokens", "2048")
    blocks = ("--num-gpu-blocks-override", "160")
    with engine(vllm_python, model, folder, (*whole, *blocks)) as node:
        ask(node, [5, 6, 7], 4)
        before, known = node.wait_settled(), len(stamped(folder))
        booked_between = []
        for number in range(6):
            ask(node, [dice.choice(TOKENS) for _ in range(1950)], 8)
            # Heartbeats of the idle engine commit seconds up to the watermark.
            page = node.wait_settled() if number in (1, 3) else None
            if page is not None:
                so_far = sum(step.held_ns for step in stamped(folder)[known:]) / 1e9
                sums = page.sum("disagg_engine_gpu_seconds_total", engine=ENGINE)
                start = before.sum("disagg_engine_gpu_seconds_total", engine=ENGINE)
                booked_between.append((sums - start, so_far))
            else:
                node.wait_committed(ENGINE, until=time.time())
        # The client gives up, and the engine still completes its step.
        with suppress(TimeoutError):
            ask(node, [dice.choice(TOKENS) for _ in range(1950)], 8, patience=4)
        wait_for(lambda: long_prompts(stamped(folder)[known:]) == 7, "the step to end", 90)
        after = node.wait_settled()
    steps = stamped(folder)[known:]

    def grown(name: str, **labels: str) -> float:
        return after.sum(name, **labels) - before.sum(name, **labels)

    true = {
        "prefill": sum(step.held_ns for step in steps if step.context_tokens) / 1e9,
        "decode": sum(step.held_ns for step in steps if not step.context_tokens) / 1e9,
    }
    booked = {
        phase: grown("disagg_engine_gpu_seconds_total", engine=ENGINE, phase=phase)
        for phase in true
    }
    longest_seconds = max(step.held_ns for step in steps) / 1e9
    assert long_prompts(steps) == 7
    say(
        f"{len(steps)} steps, the longest {longest_seconds:.1f} s; "
        + ", ".join(f"{p}: booked {booked[p]:.2f} s, stamped {true[p]:.2f} s" for p in true)
    )
    assert longest_seconds > 8
    assert sum(booked.values()) == pytest.approx(sum(true.values()), rel=0.02)
    assert booked["prefill"] == pytest.approx(true["prefill"], rel=0.02)
    ratio = booked["prefill"] / booked["decode"]
    assert ratio == pytest.approx(true["prefill"] / true["decode"], rel=0.05)
    for so_far, held in booked_between:
        assert so_far == pytest.approx(held, rel=0.02)
    assert after.sum("disagg_span_cut_seconds_total", engine=ENGINE) == 0
    assert grown("disagg_gpu_unattributed_seconds_total") == 0


def test_tokens_recomputed_by_a_tiny_kv_cache_are_prefill(
    vllm_python: Path, slow_model: Path, folder: Path, say: Say
) -> None:
    """Tokens scheduled beyond each prompt and each generated token once were recomputed."""
    dice = random.Random(20261123)
    prompts = [[dice.choice(TOKENS) for _ in range(dice.randrange(40, 120))] for _ in range(8)]
    # 24 blocks of 32 tokens for eight requests of 300 each.
    tiny = ("--max-model-len", "512", "--num-gpu-blocks-override", "24")
    with engine(vllm_python, slow_model, folder, tiny) as node:
        ask(node, [5, 6, 7], 4)
        before, known = node.wait_settled(), len(stamped(folder))
        with ThreadPoolExecutor(8) as requests:
            written = list(requests.map(lambda prompt: ask(node, prompt, 220), prompts))
        after = node.wait_settled()
    steps = stamped(folder)[known:]

    scheduled = sum(step.scheduled_tokens for step in steps)
    prompt_tokens, next_tokens = sum(map(len, prompts)), sum(written) - len(prompts)
    anew = scheduled - prompt_tokens - next_tokens
    told = {
        phase: after.sum("disagg_engine_phase_tokens_total", engine=ENGINE, phase=phase)
        - before.sum("disagg_engine_phase_tokens_total", engine=ENGINE, phase=phase)
        for phase in ("prefill", "decode")
    }
    by_vllm = sum(step.context_tokens for step in steps)
    say(
        f"prompts {prompt_tokens}, computed anew {anew}, next tokens {next_tokens}; vLLM says "
        f"prefill {by_vllm}, we say {told['prefill']:.0f}"
    )
    assert anew > 0.3 * prompt_tokens
    assert sum(told.values()) == scheduled
    assert told["prefill"] - prompt_tokens == pytest.approx(anew, rel=0.10)
