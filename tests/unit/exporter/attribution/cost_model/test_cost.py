from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.samples import StepWork
from disagg_exporter.model import ExpectedSteps


def _price(work: StepWork, compute: float = 1.0) -> float:
    """Seconds of a made-up engine: reading hides behind computing or the other way round."""
    tokens = work.prefill_tokens + work.decode_requests
    computing = (2.5e-5 * tokens + 1e-9 * work.prefill_attended) * compute
    reading = 0.006 + 4e-8 * work.decode_kv
    return 0.0005 + max(computing, reading)


def _true_share(work: StepWork) -> float:
    empty, both = _price(StepWork()), _price(work)
    prefill, decode = _price(StepWork(*work[:2])), _price(StepWork(0, 0, *work[2:]))
    first, second = prefill - empty + both - decode, decode - empty + both - prefill
    return first / (first + second)


def _steps(count: int, seed: int = 1, mixed: float = 0.4) -> Iterator[StepWork]:
    rng = random.Random(seed)
    for _ in range(count):
        requests = rng.randint(8, 100)
        decode = (requests, requests * rng.randint(300, 1500))
        tokens = rng.randint(200, 2000)
        prefill = (tokens, tokens * rng.randint(100, 2000))
        kind = rng.random()
        if kind < mixed:
            yield StepWork(*prefill, *decode)
        elif kind < mixed + 0.1:
            yield StepWork(*prefill)
        else:
            yield StepWork(0, 0, *decode)


def _taught(count: int = 4000, noise: float = 0.0, seed: int = 1, **more: float) -> StepCost:
    cost, rng = StepCost(), random.Random(seed)
    for work in _steps(count, seed, **more):
        cost.learn(work, _price(work) * max(rng.gauss(1, noise), 0.1))
    return cost


def _error(cost: StepCost, price_of: float = 1.0) -> float:
    """The error of the share over many mixed steps, in percentage points."""
    said = true = seconds = 0.0
    for work in _steps(500, seed=7, mixed=1.0):
        length = _price(work)
        said += length * (cost.prefill_share(work) or 0.0)
        true += length * _true_share(work)
        seconds += length
    return 100 * abs(said - true) / seconds


def test_mixed_steps_are_divided_by_their_true_costs() -> None:
    assert _error(_taught()) < 1.5


def test_noise_of_a_tenth_averages_out() -> None:
    assert _error(_taught(8_000, noise=0.1)) < 3


def test_an_engine_with_few_mixed_steps_is_learned_as_well() -> None:
    """Of its pure steps one in eight is learned from, and counts for eight."""
    cost = _taught(20_000, noise=0.1, mixed=0.004)

    assert cost.state.steps == 20_000
    assert _error(cost) < 3


def test_the_model_is_not_trusted_before_enough_steps() -> None:
    assert not StepCost().state.trusted
    assert not _taught(20).state.trusted
    assert _taught(1000).state.trusted


def test_pure_steps_of_both_phases_suffice_for_trust() -> None:
    cost = _taught(2000, mixed=0.0)

    assert cost.state.trusted
    assert _error(cost) < 8


def test_unpredictable_steps_leave_the_model_untrusted() -> None:
    cost, rng = StepCost(), random.Random(1)
    for work in _steps(2000):
        cost.learn(work, rng.lognormvariate(-5, 1.5))

    assert not cost.state.trusted
    assert (cost.state.residual_ratio or 0) > 0.25


def test_outliers_change_next_to_nothing() -> None:
    """First steps and graph captures take a hundred times as long."""
    cost, rng = StepCost(), random.Random(1)
    for number, work in enumerate(_steps(4000)):
        outlier = 100 if number < 5 or rng.random() < 0.01 else 1
        cost.learn(work, _price(work) * outlier)

    assert cost.state.trusted
    assert _error(cost) < 2.5


def test_drift_of_all_step_times_does_not_change_the_shares() -> None:
    cost = StepCost()
    for number, work in enumerate(_steps(8000)):
        cost.learn(work, _price(work) * (1 + 0.1 * math.sin(number / 800)))

    assert cost.state.trusted
    assert _error(cost) < 2


def test_costs_of_a_throttled_engine_are_relearned() -> None:
    cost = _taught(4000)
    for work in _steps(15_000, seed=2):
        cost.learn(work, _price(work, compute=1.5))

    work = StepWork(1500, 1500 * 500, 50, 50 * 800)
    first = _price(StepWork(*work[:2]), 1.5) - _price(StepWork(), 1.5)
    second = _price(StepWork(0, 0, *work[2:]), 1.5) - _price(StepWork(), 1.5)
    more = _price(work, 1.5) - _price(StepWork(), 1.5)
    truth = (first + more - second) / (2 * more)
    assert cost.prefill_share(work) == pytest.approx(truth, abs=0.05)


def test_compute_bound_and_memory_bound_steps_are_distinguished() -> None:
    """In the memory-bound range more prompt tokens cost nothing; above it compute decides."""
    cost = _taught(4000)
    decode = (20, 20 * 400)

    below = [cost.expect(StepWork(tokens, tokens * 100, *decode)) for tokens in (60, 120)]
    above = [cost.expect(StepWork(tokens, tokens * 100, *decode)) for tokens in (1000, 1060)]

    assert below == [pytest.approx(_price(StepWork(0, 0, *decode)), rel=0.02)] * 2
    assert above[1] / above[0] == pytest.approx(1.06, abs=0.01)


def test_costs_learned_from_pure_steps_predict_mixed_steps() -> None:
    cost = _taught(4000, noise=0.1, mixed=0.0)

    errors = [
        abs((cost.expect(work) or 0) / _price(work) - 1) for work in _steps(300, 5, mixed=1.0)
    ]

    assert statistics.median(errors) < 0.10


def test_an_engine_with_additive_costs_is_learned_as_well() -> None:
    """On a CPU nothing overlaps, and a decode request costs more than a prompt token."""

    def price(work: StepWork) -> float:
        return 0.02 + 1e-4 * work.prefill_tokens + 5e-4 * work.decode_requests

    cost, rng = StepCost(), random.Random(1)
    for work in _steps(6000):
        cost.learn(work, price(work) * rng.gauss(1, 0.1))

    work = StepWork(1000, 1000 * 500, 40, 40 * 800)
    assert cost.prefill_share(work) == pytest.approx(0.1 / 0.12, abs=0.03)


def test_the_cost_of_reading_experts_one_by_one_is_learned() -> None:
    """The first tokens of a step cost much, later ones nothing: their experts are read already."""

    def price(work: StepWork) -> float:
        tokens = work.prefill_tokens + work.decode_requests
        return 0.002 + 0.01 * (1 - 0.97**tokens)

    cost, rng = StepCost(), random.Random(1)
    for _ in range(6000):
        requests, tokens = rng.randint(1, 12), rng.choice([0, 0, rng.randint(20, 500)])
        work = StepWork(tokens, tokens**2 / 2, requests, requests * 300)
        cost.learn(work, price(work) * rng.gauss(1, 0.1))

    work = StepWork(200, 20_000, 6, 1800)
    prefill, decode = 1 - 0.97**200, 1 - 0.97**6
    both = 1 - 0.97**206
    truth = (prefill + both - decode) / (2 * both)
    assert cost.prefill_share(work) == pytest.approx(truth, abs=0.03)


def test_no_share_is_given_far_beyond_the_observed_steps() -> None:
    cost = _taught(1000)

    assert cost.prefill_share(StepWork(3000, 9e5, 50, 4e4)) is not None
    assert cost.prefill_share(StepWork(60_000, 9e8, 50, 4e4)) is None


def test_the_kv_cache_may_be_reported_in_any_unit() -> None:
    """Records of vLLM report the used ratio of the KV cache without its size."""
    cost = StepCost(kv_in_tokens=False)
    for work in _steps(6000):
        cost.learn(work._replace(decode_kv=work.decode_kv / 500_000), _price(work))

    work = StepWork(1500, 1500 * 500, 50, 50 * 800)
    told = work._replace(decode_kv=work.decode_kv / 500_000)
    assert cost.prefill_share(told) == pytest.approx(_true_share(work), abs=0.02)


def _decode_for(cost: StepCost, seconds: float) -> None:
    """Let it learn from steps of half a millisecond that only decode."""
    count = round(seconds * 2000)
    requests = np.arange(count) % 64 + 1
    works = np.stack((0 * requests, 0 * requests, requests, 500 * requests), axis=1).astype(float)
    cost.learn_pure(works, 0.0004 + 2e-6 * requests)


def test_a_fit_is_deferred_for_a_minute_while_no_mixed_step_needs_it() -> None:
    """Engines without mixed steps do not pay for fits that nothing uses."""
    cost = StepCost()
    _decode_for(cost, 30)
    fits = cost.save().fits

    _decode_for(cost, 20)
    waiting = cost.save()
    _decode_for(cost, 30)

    assert waiting.fits == fits
    assert waiting.next_fit <= sum(waiting.steps)
    assert cost.save().fits == fits + 1


def test_refresh_runs_a_deferred_fit_once() -> None:
    cost = StepCost()
    _decode_for(cost, 50)
    fits = cost.save().fits

    cost.refresh()
    cost.refresh()

    assert cost.save().fits == fits + 1


def test_a_deferred_fit_runs_at_once_after_a_restart() -> None:
    cost = StepCost()
    _decode_for(cost, 50)
    saved = cost.save()

    after = StepCost.restored(saved)
    _decode_for(after, 0.01)

    assert after.save().fits == saved.fits + 1


def test_an_engine_with_mixed_steps_is_fitted_without_deferral() -> None:
    cost = _taught(10_000)

    assert cost.save().next_fit > sum(cost.save().steps)


def test_pure_steps_learned_as_columns_equal_those_learned_one_by_one() -> None:
    """Beyond 2000 of a kind one in eight is learned from, whichever way they come."""
    rng = random.Random(4)
    works = list(_steps(12_000, mixed=0.0))
    seconds = [_price(work) * rng.gauss(1, 0.1) for work in works]
    columns, one_by_one = StepCost(), StepCost()

    columns.learn_pure(np.array(works), np.array(seconds))
    for work, length in zip(works, seconds, strict=True):
        one_by_one.learn(work, length)

    assert columns.save() == one_by_one.save()


NUMBERS = st.floats(0, 1e9, allow_nan=False)
WORKS = st.builds(StepWork, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@given(st.lists(st.tuples(WORKS, st.floats(-1, 1e6, allow_nan=False)), max_size=60), WORKS)
def test_the_prefill_share_is_absent_or_between_0_and_1(
    history: list[tuple[StepWork, float]], asked: StepWork
) -> None:
    """Whatever was learned: from 0 to 1, or None; never NaN; coefficients never negative."""
    cost = StepCost()
    for work, seconds in history:
        cost.learn(work, seconds)

    share = cost.prefill_share(asked)
    state = cost.state

    assert share is None or 0 <= share <= 1
    assert all(value >= 0 and math.isfinite(value) for value in state.coefficients)
    assert state.residual_ratio is None or 0 <= state.residual_ratio <= 1


def _paces(cost: StepCost) -> tuple[float, ...]:
    """What steps took, over what was expected of them, by kind."""
    sums = cost.take_expected()
    return tuple(taken / said for said, taken in zip(*sums, strict=True))


def test_steps_of_learned_cost_take_their_expected_time() -> None:
    cost = _taught(6000, noise=0.1)

    assert _paces(cost) == pytest.approx((1.0, 1.0, 1.0), abs=0.02)


def test_a_slowdown_is_still_visible_half_an_hour_after_it_began() -> None:
    """The pace itself has followed within minutes: what steps cost *now* hides it."""
    cost, seconds, rng = _taught(12_000, noise=0.05), 0.0, random.Random(3)
    works = list(_steps(2000, seed=4))
    while seconds < 1800.0:
        for work in works:
            length = 1.5 * _price(work) * rng.gauss(1, 0.05)
            cost.learn(work, length)
            seconds += length
    cost.take_expected()
    now = cost.expect(works[0])
    for work in works:
        cost.learn(work, 1.5 * _price(work))

    assert now == pytest.approx(1.5 * _price(works[0]), rel=0.05)
    assert min(_paces(cost)) > 1.38


def test_the_first_steps_have_no_expected_time() -> None:
    assert _taught(300).take_expected() == ExpectedSteps()
    assert _taught(400).take_expected() != ExpectedSteps()


def test_the_expected_sum_of_widely_scattered_steps_is_accurate() -> None:
    """As on CPUs that others use: a heavy tail moves the fit less than it moves the mean."""
    cost, rng = StepCost(), random.Random(5)

    def take(works: Iterator[StepWork], slower: float) -> float:
        for work in works:
            cost.learn(work, slower * _price(work) * rng.lognormvariate(0, 0.7))
        expected_ns, taken_ns = cost.take_expected()
        return sum(taken_ns) / sum(expected_ns)

    take(_steps(6000), 1.0)
    assert take(_steps(2000, seed=2), 1.0) == pytest.approx(1.0, abs=0.08)
    assert take(_steps(2000, seed=3), 2.0) == pytest.approx(2.0, abs=0.2)


def test_steps_larger_than_any_observed_have_no_expected_time() -> None:
    cost = _taught()
    cost.take_expected()
    cost.learn(StepWork(50_000, 5e7), 9.0)

    assert cost.take_expected() == ExpectedSteps()


def test_expected_time_covers_all_steps_though_one_in_eight_is_sampled() -> None:
    cost, rng = StepCost(), random.Random(6)
    for _ in range(4000):
        requests = rng.randint(8, 100)
        cost.learn(StepWork(0, 0, requests, requests * 500), 0.05)
    cost.take_expected()
    for _ in range(800):
        requests = rng.randint(8, 100)
        cost.learn(StepWork(0, 0, requests, requests * 500), 0.1)

    expected_ns, taken_ns = cost.take_expected()
    assert taken_ns == (0, 80_000_000_000, 0)
    assert expected_ns[1] == pytest.approx(40e9, rel=0.03)


def test_a_widely_scattered_slowdown_is_compared_with_the_time_expected_before_it() -> None:
    """Steps of a process that is stopped most of the time take their usual time or ten times it."""
    cost, rng = _taught(12_000), random.Random(8)
    cost.take_expected()
    works = list(_steps(2000, seed=9))
    for work in works:
        cost.learn(work, _price(work) * rng.choice((1.0, 10.0)))

    expected_ns, taken_ns = cost.take_expected()
    assert sum(taken_ns) > 4 * sum(_price(work) for work in works) * 1e9
    assert sum(taken_ns) / sum(expected_ns) == pytest.approx(5.5, rel=0.1)
