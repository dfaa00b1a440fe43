from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from disagg_cluster.simulator.engine.batch import Outcome, SchedulerLimits, Sequence
from disagg_cluster.simulator.engine.engine import Engine
from disagg_cluster.simulator.engine.roofline import BatchWork, Noise, Price, StepNoise
from disagg_cluster.simulator.engine.scheduler import Scheduler

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """A millisecond per prompt token, ten per decode step, and one for each 100 tokens read."""

    def price(self, work: BatchWork) -> Price:
        writing = 0.010 + work.writers_kv_tokens * 1e-5 if work.writers else 0.0
        return Price(work.context_tokens * 0.001 + writing)


def engine(noise: Noise | None = None, *, longest_run: int = 128, blocks: int = 1000) -> Engine:
    return Engine(
        Scheduler(SchedulerLimits(kv_blocks=blocks)),
        Milliseconds(),
        StepNoise(noise or Noise(), random.Random(1)),
        gap_seconds=0.002,
        longest_run=longest_run,
    )


def writing(*lengths: int, **more: int) -> Engine:
    """An engine that has just read prompts of 10 tokens and begins to decode."""
    made = engine(**more)  # type: ignore[arg-type]
    for number, output in enumerate(lengths):
        made.scheduler.submit(Sequence(number, 10, output, 0))
    run = made.begin(0)
    assert run is not None
    made.settle(run.end_ns(1))
    return made


def test_a_step_takes_the_host_and_then_the_gpu() -> None:
    made = engine()
    made.scheduler.submit(Sequence(1, 10, 1, 0))

    run = made.begin(5 * MS)

    assert run is not None
    assert (run.end_ns(1), run.length_ns, run.count) == (17 * MS, 10 * MS, 1)
    assert made.settle(17 * MS - 1) is None
    assert made.settle(17 * MS) is not None


def test_equal_steps_are_planned_at_once_until_a_request_ends() -> None:
    made = writing(20, 9)

    run = made.begin(100 * MS)

    assert run is not None
    assert run.count == 8
    # Two requests of 11 tokens at the first step and 14.5 at the mean one: 29 tokens read.
    assert run.length_ns == pytest.approx((0.010 + 29e-5) * 1e9, abs=1)


def test_a_run_is_as_long_as_its_single_steps() -> None:
    """The middle step's length, times the count, is the sum of all lengths."""
    together, single = writing(101), writing(101, longest_run=1)
    run = together.begin(0)
    assert run is not None
    now_ns = 0
    for _ in range(100):
        step = single.begin(now_ns)
        assert step is not None
        now_ns = step.end_ns(1)
        single.settle(now_ns)

    assert run.count == 100
    assert run.end_ns(100) == pytest.approx(now_ns, abs=100)


def test_inspecting_a_run_changes_only_how_it_is_split() -> None:
    def told(*looks_ms: int) -> list[Outcome]:
        made = writing(30)
        run = made.begin(0)
        assert run is not None
        outcomes = [made.settle(at * MS) for at in looks_ms]
        outcomes.append(made.settle(run.end_ns(run.count)))
        return [outcome for outcome in outcomes if outcome is not None]

    whole, parts = told(), told(30, 31, 100, 200)

    assert len(parts) > 2
    assert sum(o.elapsed_ns for o in parts) == sum(o.elapsed_ns for o in whole)
    assert sum(o.count for o in parts) == whole[0].count == 29
    assert parts[-1].ended_ns == whole[0].ended_ns
    assert sum(sum(o.gaps.values()) for o in parts) == sum(whole[0].gaps.values()) == 29


def test_a_cut_run_ends_with_the_step_that_is_under_way() -> None:
    made = writing(30)
    run = made.begin(0)
    assert run is not None
    middle_ns = 4 * run.period_ns + 5

    assert made.cut(middle_ns)
    assert not made.cut(middle_ns)
    assert run.count == 5
    assert made.settle(run.end_ns(5)) is not None
    assert made.run is None


def test_a_stalled_engine_ends_its_step_later_and_begins_none() -> None:
    made = writing(30)
    run = made.begin(0)
    assert run is not None
    length_ns, now_ns = run.length_ns, 2 * run.period_ns + 3 * MS
    made.settle(now_ns)

    made.stall(now_ns, now_ns + 1000 * MS)

    assert run.end_ns(1) == 3 * run.gap_ns + 3 * length_ns + 1000 * MS
    assert made.settle(now_ns + 999 * MS) is None
    outcome = made.settle(run.end_ns(1))
    assert outcome is not None
    assert (outcome.count, outcome.elapsed_ns) == (1, length_ns + 1000 * MS)


def test_a_stalled_idle_engine_begins_nothing_until_it_is_over() -> None:
    made = engine()
    made.stall(0, 50 * MS)
    made.scheduler.submit(Sequence(1, 10, 1, 0))

    assert made.begin(49 * MS) is None
    assert made.begin(50 * MS) is not None


def test_a_run_stops_where_the_cache_is_full() -> None:
    """Two requests with 10 tokens computed, three blocks: both need a second after six more."""
    made = writing(90, 90, blocks=3)

    run = made.begin(0)

    assert run is not None
    assert run.count == 6


def test_half_a_step_is_half_its_gpu_time() -> None:
    made = writing(30)
    run = made.begin(0)
    assert run is not None

    assert run.unsettled_ns(MS) == 0
    assert run.unsettled_ns(run.gap_ns + 4 * MS) == 4 * MS
    assert run.unsettled_ns(run.period_ns + run.gap_ns + MS) == run.length_ns + MS
    assert run.unsettled_ns(10**12) == run.count * run.length_ns


def test_noise_makes_steps_differ_and_long_runs_less() -> None:
    noise = StepNoise(Noise(step_ratio=0.1), random.Random(0))
    single = [noise.factor(0, 1) for _ in range(2000)]
    runs = [noise.factor(0, 100) for _ in range(2000)]

    assert _spread(single) == pytest.approx(0.1, rel=0.1)
    assert _spread(runs) == pytest.approx(0.01, rel=0.1)


def test_drift_oscillates_within_its_period() -> None:
    noise = StepNoise(Noise(drift_ratio=0.2, drift_period_seconds=10), random.Random(0))
    factors = [noise.factor(tenth * 100 * MS, 1) for tenth in range(100)]

    assert max(factors) == pytest.approx(1.2, abs=1e-3)
    assert min(factors) == pytest.approx(0.8, abs=1e-3)


def _spread(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5


def test_in_real_time_a_step_ends_when_it_actually_ends() -> None:
    """Whatever was planned: latencies and durations are the actual ones."""
    made = engine()
    made.scheduler.submit(Sequence(1, 100, 2, 0))
    made.begin(10 * MS)
    first = made.finish(150 * MS)
    made.begin(160 * MS)
    second = made.finish(190 * MS)

    assert first is not None
    assert second is not None
    assert (first.ended_ns, first.length_ns) == (150 * MS, 138 * MS)
    assert second.gaps == {40 * MS: 1}
    assert [sequence.number for sequence in second.finished] == [1]
