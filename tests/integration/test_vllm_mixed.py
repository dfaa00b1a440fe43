"""A real vLLM engine that prefills in chunks between its decode steps, held against its worker.

How well mixed steps are predicted depends on a quiet machine: `make bench-mixed` measures it live,
tests/unit/exporter/accounting/test_captured_engines.py checks it on recordings of such runs.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire
from support.captures import write_capture
from support.mixed_load import record
from support.mixed_steps import accounted_seconds
from support.vllm_session import Say

pytestmark = pytest.mark.vllm_long

DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0"
# Set to write what was recorded to tests/data.
WRITE = "DISAGG_WRITE_CAPTURE"


@pytest.mark.parametrize(
    ("overlapped", "within", "name"), [(False, 0.05, "mixed"), (True, 0.10, "mixed_async")]
)
def test_prefill_chunks_between_decode_steps_are_accounted_as_the_worker_measured(
    vllm_python: Path,
    wide_model: Path,
    folder: Path,
    overlapped: bool,
    within: float,
    name: str,
    say: Say,
) -> None:
    engine = asyncio.run(record(vllm_python, wide_model, folder, overlapped=overlapped))
    records, truth = engine.steps, engine.truth()
    steps = [message.step for message in records if message.step is not None]
    assert len(steps) == len(truth)
    if WRITE in os.environ:
        write_capture(DATA / f"{name}.steps.jsonl.gz", records, truth)

    told = {bool(message.flags & wire.OVERLAPPED) for message in engine.heard}
    accounted = accounted_seconds(steps, overlapped=overlapped)
    stamped = sum(step.held_ns for step in truth) / 1e9
    say(
        f"{name}: {len(steps)} steps, accounted {accounted:.3f} s, stamped {stamped:.3f} s, "
        f"{accounted / stamped - 1:+.2%}"
    )
    assert told == {overlapped}
    assert accounted == pytest.approx(stamped, rel=within)


def test_an_engine_that_runs_the_model_in_its_own_process_is_accounted_from_launch_to_end(
    vllm_python: Path, wide_model: Path, folder: Path, say: Say
) -> None:
    """As on one GPU. On the CPU launching is computing, and vLLM itself reports next to no time."""
    starting = record(vllm_python, wide_model, folder, overlapped=False, in_process=True)
    engine = asyncio.run(starting)
    steps = [message.step for message in engine.steps if message.step is not None]
    truth = engine.truth()
    assert len(steps) == len(truth)

    held_s = [ns / 1e9 for ns in steps[-1].totals.elapsed_ns]
    by_kind = Counter[bool]()
    for step in truth:
        by_kind[step.context_tokens > 0] += step.held_ns
    prompts_s, decode_s = by_kind[True] / 1e9, by_kind[False] / 1e9
    context_s, generation_s, mixed_s, dummy_s = held_s
    say(
        f"in process: {len(steps)} steps, with prompts {context_s + mixed_s:.3f} s of "
        f"{prompts_s:.3f}, decode {generation_s:.3f} s of {decode_s:.3f}"
    )
    assert dummy_s == 0
    assert context_s + mixed_s == pytest.approx(prompts_s, rel=0.05)
    assert generation_s == pytest.approx(decode_s, rel=0.1)
