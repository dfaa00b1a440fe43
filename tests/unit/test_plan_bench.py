"""bench-plan's simulation compared with queueing theory; and an hour of the bench."""

from __future__ import annotations

import numpy as np
import pytest
from bench.plan.comparison import BARS, best_of, figures_of, live
from bench.plan.days import HISTORY_DAYS, MINUTES, SERVED, Arrivals, Day, make_day
from bench.plan.replay import GPUS, Outcome, replay
from bench.plan.rules import Stabilized, Static
from bench.plan.truth import DRAIN_MINUTES, LEAD_MINUTES, EnginePool, ModelTruth

from disagg_cluster.planner.history.load_series import Floats

_MODEL = SERVED[2]
_HOUR = 60


def day(seconds: Floats, prompt_tokens: float = 8000.0, output_tokens: float = 100.0) -> Day:
    """Return equal requests at these seconds."""
    count = len(seconds)
    arrivals = Arrivals(seconds, np.full(count, prompt_tokens), np.full(count, output_tokens))
    nothing = np.zeros(HISTORY_DAYS * MINUTES + _HOUR)
    return Day(_MODEL, nothing, nothing, nothing, arrivals)


def lived(of: Day, prefill: int, decode: int, minutes: int = _HOUR) -> ModelTruth:
    model = ModelTruth(of, prefill, decode)
    for minute in range(minutes):
        model.minute(minute)
    return model


def service_seconds() -> float:
    """Return the time of one prompt of 8,000 tokens, by its steps."""
    costs = _MODEL.costs()
    first = costs.step_seconds(4096, 2048, 0, 0)
    return first + costs.step_seconds(8000 - 4096, 4096 + (8000 - 4096) / 2, 0, 0)


def test_prompt_waits_match_queueing_theory() -> None:
    """One server, Poisson arrivals, equal services: the mean wait of Pollaczek and Khinchine."""
    service = service_seconds()
    used = 0.7
    rng = np.random.default_rng(0)
    seconds = np.cumsum(rng.exponential(service / used, 200_000))
    seconds = seconds[seconds < 6 * 3600]
    model = lived(day(seconds, output_tokens=1.0), 1, 8, 6 * _HOUR)

    step = _MODEL.costs().step_seconds(0, 0, 1, 8000)
    waits = model.ttft_seconds[:-100] - service - _MODEL.transfer_seconds - step
    assert waits.mean() == pytest.approx(used * service / (2 * (1 - used)), rel=0.1)


def test_requests_of_the_last_minute_may_end_later_without_gpu_hours() -> None:
    last = day(np.array([59.0]), output_tokens=500.0)
    found = replay([last], Static(((1, 1),)), ((1, 1),), 1)

    assert (found.kept, found.minutes_over) == (1, 0)
    assert found.gpu_hours == pytest.approx(2 * _MODEL.gpus / 60)


def test_the_time_per_token_is_a_step_of_all_concurrent_requests() -> None:
    together = day(np.zeros(16), prompt_tokens=1.0, output_tokens=500.0)
    itl = lived(together, 16, 1).itl_seconds

    step = _MODEL.costs().step_seconds(0, 0, 16, 16 * 251)
    assert itl.mean() == pytest.approx(step, rel=0.03)


def test_requests_without_room_in_the_kv_cache_wait() -> None:
    """The cache of an 8B on one H100 has room for 44 requests of 9,000 tokens."""
    model = lived(day(np.zeros(80), output_tokens=2000.0), 80, 1)

    late = model.ttft_seconds > 10.0
    assert 20 < late.sum() < 40


def test_a_backlog_carries_over_into_the_next_minutes() -> None:
    service = service_seconds()
    model = lived(day(np.full(600, 0.0)), 1, 4)

    assert model.ttft_seconds.max() == pytest.approx(600 * service, rel=0.02)
    assert model.within_targets().mean() < 0.05


def test_an_engine_serves_after_its_lead_time_and_is_paid_from_its_order() -> None:
    pool = EnginePool(4, 1)
    pool.order(2, 0)
    serving = []
    for minute in range(LEAD_MINUTES + 1):
        pool.advance(minute)
        serving.append(pool.serving)

    assert serving == [1] * LEAD_MINUTES + [2]
    assert pool.gpu_minutes == 4 * 2 * (LEAD_MINUTES + 1)


def test_a_released_engine_is_paid_for_until_it_is_drained() -> None:
    pool = EnginePool(4, 2)
    pool.order(1, 0)
    held = []
    for minute in range(DRAIN_MINUTES + 2):
        pool.advance(minute)
        held.append(pool.held_gpus)

    assert pool.serving == 1
    assert held == [8] * DRAIN_MINUTES + [4, 4]


def test_no_rule_gets_more_gpus_than_there_are() -> None:
    days = make_day(3, 10)
    greedy = Static(((50, 50),) * len(days))
    found = replay(days, greedy, ((1, 1),) * len(days), 10)

    assert found.gpu_hours <= GPUS * 10 / 60 + 1e-9


def test_the_reactive_rule_uses_a_five_minute_maximum_and_a_tenth_of_tolerance() -> None:
    hpa = Stabilized()
    settled = [hpa.settle([want], [10]) for want in (14.0, 10.9, 6.0, 6.0, 6.0, 6.0, 6.0)]

    assert settled[0] == [14]
    assert settled[1] == [10]
    assert settled[5:] == [[10], [6]]


def test_a_seed_always_makes_the_same_day_and_another_seed_another_day() -> None:
    days = [make_day(seed, 5)[0].requests for seed in (5, 5, 6)]

    np.testing.assert_array_equal(days[0], days[1])
    assert not np.array_equal(days[0], days[2])


def test_our_plan_serves_twenty_minutes_within_the_gpus() -> None:
    """A short run of the bench: every request is accounted for, within the available GPUs."""
    found = live(2, 20, "ours 9")["ours 9"]

    requests = sum(len(each.arrivals.seconds) for each in make_day(2, 20))
    assert found.requests == requests
    assert 0 < found.gpu_hours <= GPUS / 3 + 1e-9
    assert found.attainment > 0.5


def outcome(gpu_hours: float, minutes_over: int) -> Outcome:
    return Outcome(gpu_hours, minutes_over, 90, 100)


def test_our_rule_is_compared_with_the_reactive_rule_at_no_more_gpu_hours() -> None:
    total = {
        "reactive 0.5": outcome(100.0, 40),
        "reactive 0.7": outcome(80.0, 90),
        "ours 9": outcome(85.0, 30),
        "ours 19": outcome(95.0, 12),
        "ours 49": outcome(130.0, 1),
        "last value": outcome(90.0, 10),
    }
    best = best_of(total)
    figures = figures_of(best, total)

    assert (best["ours"], best["reactive"]) == ("ours 19", "reactive 0.5")
    assert [figures[bar] for bar in BARS] == [0.3, 0.95, 1.0]
