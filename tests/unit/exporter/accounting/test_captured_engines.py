"""Replays of step records captured from real vLLM 0.32 engines (busy cores: shapes, not speed)."""

from __future__ import annotations

import pytest

from disagg_exporter.model import Phase, Role
from support.accounting import SECOND_NS
from support.captured_engines import CAPTURES, opencost_input_share, replay
from support.captures import read_capture
from support.mixed_steps import accounted_seconds, median_error


@pytest.mark.parametrize(
    ("name", "role", "own", "other"),
    [
        ("nixl_decode", Role.DECODE, Phase.DECODE, Phase.PREFILL),
        ("nixl_prefill", Role.PREFILL, Phase.PREFILL, Phase.DECODE),
    ],
)
def test_a_single_phase_engine_is_accounted_to_its_phase_without_loss(
    name: str, role: Role, own: Phase, other: Phase
) -> None:
    """≤ 1 % in the phase the engine never worked in, ≥ 99 % of the recorded time accounted."""
    accounting, recorded, end = replay(name, role)
    seconds = accounting.engine_seconds(end)

    assert seconds[other] <= 0.01 * sum(seconds.values())
    assert sum(seconds.values()) >= 0.99 * recorded
    assert sum(seconds.values()) <= 1.0001 * recorded
    assert accounting.unbalanced() == []


def test_prefill_computed_by_a_decode_engine_is_accounted_as_prefill() -> None:
    """ExampleConnector hands over whole blocks only: most prompt tokens were computed here."""
    accounting, recorded, end = replay("example_decode", Role.DECODE)
    seconds = accounting.engine_seconds(end)

    assert seconds[Phase.PREFILL] > 0.1 * sum(seconds.values())
    assert sum(seconds.values()) >= 0.99 * recorded


@pytest.mark.parametrize(
    ("name", "overlapped", "within"), [("mixed", False, 0.05), ("mixed_async", True, 0.10)]
)
def test_mixed_steps_are_accounted_for_as_long_as_the_worker_held_them(
    name: str, overlapped: bool, within: float
) -> None:
    """Recorded with the truth of each step by tests/integration/test_vllm_mixed.py."""
    rows = read_capture(CAPTURES / f"{name}.steps.jsonl.gz")

    accounted = accounted_seconds([step for step, _ in rows], overlapped=overlapped)

    assert accounted == pytest.approx(sum(held_ns for _, held_ns in rows) / SECOND_NS, rel=within)


@pytest.mark.parametrize("name", ["mixed", "mixed_async"])
def test_costs_learned_from_pure_steps_predict_recorded_mixed_steps(name: str) -> None:
    rows = read_capture(CAPTURES / f"{name}.steps.jsonl.gz")

    assert median_error(rows) <= 0.10


# The price of a token


def test_the_input_share_of_cost_is_the_prefill_share_of_gpu_time() -> None:
    """28 % of the pair's GPU time; by OpenCost's formula it would be 83 %."""
    prefill, recorded_prefill, prefill_end = replay("nixl_prefill", Role.PREFILL)
    decode, recorded_decode, decode_end = replay("nixl_decode", Role.DECODE)
    used = [prefill.engine_seconds(prefill_end), decode.engine_seconds(decode_end)]
    share = sum(each[Phase.PREFILL] for each in used) / sum(sum(each.values()) for each in used)
    true = recorded_prefill / (recorded_prefill + recorded_decode)

    assert true == pytest.approx(0.283, abs=0.001)
    assert share == pytest.approx(true, abs=0.01)
    assert opencost_input_share("nixl") == pytest.approx(0.828, abs=0.001)
