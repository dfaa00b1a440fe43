"""Capacity learned from records of real vLLM 0.32 engines on busy cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import (
    EngineCapacity,
    EngineState,
    EngineStatus,
    LimitConfidence,
    Role,
    StreamKey,
)
from support.accounting import SECOND_NS, StepReporter, captured_steps

CAPTURES = Path(__file__).parents[3] / "data" / "vllm-0.32.0"
STEP_TOKENS = 128
"""`--max-num-batched-tokens` of the captured mixed engines."""


def learned(name: str, role: Role, *, overlapped: bool = False) -> EngineCapacity:
    """What is known of a captured engine at the end of its capture; a token may take 0.5 s."""
    rows = captured_steps(CAPTURES / f"{name}.steps.jsonl.gz")
    status = EngineStatus(
        "engine", role, "vllm", "", "m", ("gpu",), EngineState.READY, True, "", ""
    )
    first = float(rows[0]["t"]) - 2  # type: ignore[arg-type]
    capacity_model, teller, second = CapacityModel(0.5), StepReporter(), 0
    capacity_model.advance([status], 0)
    for row in rows:
        t = float(row["t"]) - first  # type: ignore[arg-type]
        while second + 1 < t:
            second += 1
            capacity_model.advance([status], second * SECOND_NS)
        _, contexts, context_tokens, generations, generated, elapsed_ms = row["it"]  # type: ignore[misc]
        step = teller.step(
            t,
            elapsed_ms / 1000,
            context_requests=contexts,
            context_tokens=context_tokens,
            generation_requests=generations,
            generation_tokens=generated,
            computed_tokens=row["computed"],
            external_tokens=row["ext"],
            running=row["run"],
            waiting=row["wait"],
            deferred=row["skip"],
        )
        capacity_model.step(StreamKey("engine", 1, 1, 0), step, overlapped=overlapped)
    capacity_model.advance([status], (second + 1) * SECOND_NS)
    (capacity,) = capacity_model.capacities([status])
    return capacity


@pytest.mark.parametrize(("name", "overlapped"), [("mixed", False), ("mixed_async", True)])
def test_a_chunked_engine_knows_its_knee_below_its_own_limit(name: str, overlapped: bool) -> None:
    """Steps of 128 tokens take 0.21 s and small ones 0.025 s: nine tenths of their rate at 57."""
    prefill = learned(name, Role.MIXED, overlapped=overlapped).prefill

    assert prefill is not None
    assert prefill.confidence is LimitConfidence.BOTH
    assert prefill.knee_tokens is not None
    assert STEP_TOKENS / 3 < prefill.knee_tokens < STEP_TOKENS
    assert 450 < prefill.tokens_per_second < 700


def test_a_decode_engine_with_four_requests_is_nearly_empty() -> None:
    used_ratio = learned("nixl_decode", Role.DECODE).used_ratio

    assert used_ratio is not None
    assert used_ratio < 0.1
