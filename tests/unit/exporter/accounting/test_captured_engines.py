"""Replays of step records captured from real vLLM 0.32 engines (busy cores: shapes, not speed)."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_exporter.model import Phase, Role, Step
from support.accounting import SECOND_NS, NodeAccounting, StepReporter, captured_steps
from support.captures import read_capture
from support.mixed_steps import booked_seconds, median_error

CAPTURES = Path(__file__).parents[3] / "data" / "vllm-0.32.0"


def _replay(name: str, role: Role) -> tuple[NodeAccounting, float, float]:
    """Feed a capture in real order with 1 Hz heartbeats; return accounting, recorded time, end."""
    rows = captured_steps(CAPTURES / f"{name}.steps.jsonl.gz")
    first, accounting, reporter = float(rows[0]["t"]) - 2, NodeAccounting(), StepReporter()  # type: ignore[arg-type]
    accounting.engine(role=role)
    accounting.beat(reporter, 0)
    recorded, beat = 0.0, 1.0
    for row in rows:
        t = float(row["t"]) - first  # type: ignore[arg-type]
        while beat < t:
            accounting.beat(reporter, beat)
            accounting.advance(beat)
            beat += 1
        _, contexts, context_tokens, generations, generated, elapsed_ms = row["it"]  # type: ignore[misc]
        step: Step = reporter.step(
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
        accounting.step(reporter, step)
        recorded += step.elapsed_ns / SECOND_NS
    end = beat + 90
    while beat < end:
        accounting.beat(reporter, beat)
        accounting.advance(beat)
        beat += 1
    return accounting, recorded, beat


@pytest.mark.parametrize(
    ("name", "role", "own", "other"),
    [
        ("nixl_decode", Role.DECODE, Phase.DECODE, Phase.PREFILL),
        ("nixl_prefill", Role.PREFILL, Phase.PREFILL, Phase.DECODE),
    ],
)
def test_a_pure_engine_is_seen_as_pure_and_none_of_its_time_is_lost(
    name: str, role: Role, own: Phase, other: Phase
) -> None:
    """≤ 1 % in the phase the engine never worked in, ≥ 99 % of the recorded time accounted."""
    accounting, recorded, end = _replay(name, role)
    seconds = accounting.engine_seconds(end)

    assert seconds[other] <= 0.01 * sum(seconds.values())
    assert sum(seconds.values()) >= 0.99 * recorded
    assert sum(seconds.values()) <= 1.0001 * recorded
    assert accounting.unbalanced() == []


def test_a_decode_engine_that_prefills_locally_shows_its_leakage() -> None:
    """ExampleConnector hands over whole blocks only: most prompt tokens were computed here."""
    accounting, recorded, end = _replay("example_decode", Role.DECODE)
    seconds = accounting.engine_seconds(end)

    assert seconds[Phase.PREFILL] > 0.1 * sum(seconds.values())
    assert sum(seconds.values()) >= 0.99 * recorded


@pytest.mark.parametrize(
    ("name", "overlapped", "within"), [("mixed", False, 0.05), ("mixed_async", True, 0.10)]
)
def test_chunks_between_decode_steps_are_booked_as_long_as_the_worker_held_them(
    name: str, overlapped: bool, within: float
) -> None:
    """Recorded with the truth of each step by tests/integration/test_vllm_mixed.py."""
    rows = read_capture(CAPTURES / f"{name}.steps.jsonl.gz")

    booked = booked_seconds([step for step, _ in rows], overlapped=overlapped)

    assert booked == pytest.approx(sum(held_ns for _, held_ns in rows) / SECOND_NS, rel=within)


@pytest.mark.parametrize("name", ["mixed", "mixed_async"])
def test_what_steps_of_one_phase_teach_foresees_the_mixed_ones(name: str) -> None:
    rows = read_capture(CAPTURES / f"{name}.steps.jsonl.gz")

    assert median_error(rows) <= 0.10


# The price of a token


def _opencost_input_share(pair: str) -> float:
    """Return what pkg/inferencecost of OpenCost makes of a pair's pages.

    Seconds of prompts, over these and the seconds *per token* of finished requests.
    """
    names = "request_prefill_time_seconds_sum", "request_time_per_output_token_seconds_sum"
    sums = dict.fromkeys(names, 0.0)
    for role in ("prefill", "decode"):
        for line in (CAPTURES / f"{pair}_{role}.prom").read_text().splitlines():
            for name in names:
                if line.startswith(f"vllm:{name}{{"):
                    sums[name] += float(line.rsplit(" ", 1)[1])
    return sums[names[0]] / sum(sums.values())


def test_input_has_the_share_of_cost_that_the_steps_took() -> None:
    """28 % of the pair's GPU time; by OpenCost's formula it would be 83 %."""
    prefill, recorded_prefill, prefill_end = _replay("nixl_prefill", Role.PREFILL)
    decode, recorded_decode, decode_end = _replay("nixl_decode", Role.DECODE)
    used = [prefill.engine_seconds(prefill_end), decode.engine_seconds(decode_end)]
    share = sum(each[Phase.PREFILL] for each in used) / sum(sum(each.values()) for each in used)
    true = recorded_prefill / (recorded_prefill + recorded_decode)

    assert true == pytest.approx(0.283, abs=0.001)
    assert share == pytest.approx(true, abs=0.01)
    assert _opencost_input_share("nixl") == pytest.approx(0.828, abs=0.001)
