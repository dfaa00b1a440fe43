"""Capacity learned from records of real vLLM 0.32 engines on busy cores."""

from __future__ import annotations

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
from support.accounting import SECOND_NS, StepReporter
from support.captured_engines import told

STEP_TOKENS = 128
"""`--max-num-batched-tokens` of the captured mixed engines."""


def learned(name: str, role: Role, *, overlapped: bool = False) -> EngineCapacity:
    """What is learned of an engine at the end of its capture; the target is 0.5 s per token."""
    status = EngineStatus(
        "engine", role, "vllm", "", "m", ("gpu",), EngineState.READY, True, "", ""
    )
    capacity_model, now = CapacityModel(0.5), 0

    def advance(second: int) -> None:
        nonlocal now
        now = second
        capacity_model.advance([status], second * SECOND_NS)

    advance(0)
    for step in told(name, StepReporter(), advance):
        capacity_model.step(StreamKey("engine", 1, 1, 0), step, overlapped=overlapped)
    advance(now + 1)
    (capacity,) = capacity_model.capacities([status])
    return capacity


@pytest.mark.parametrize(("name", "overlapped"), [("mixed", False), ("mixed_async", True)])
def test_the_knee_of_a_chunked_engine_lies_below_its_step_limit(
    name: str, overlapped: bool
) -> None:
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
