from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cluster.planner.capacity.test_pools import CHAT, COSTS, TARGETS

from disagg_cluster.planner.capacity.late_share import LateWindow, capacity_factor
from disagg_cluster.planner.capacity.prefill_pool import prefill_pool

PRIOR = 0.1
QUEUE = prefill_pool(COSTS, CHAT, TARGETS).queue


def late_share(requests_per_second: float) -> float:
    return QUEUE.late_share(requests_per_second, 4, 0.4)


def seen(requests_per_second: float, factor: float, requests: float = 500) -> LateWindow:
    """A window of a pool whose capacity is the formula's times `factor`."""
    return LateWindow(
        requests_per_second, requests, requests * late_share(requests_per_second / factor)
    )


def test_without_evidence_the_factor_is_1_with_the_error_of_the_costs() -> None:
    found = capacity_factor([LateWindow(100.0, 0, 0)], late_share, PRIOR)

    assert found.factor == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((0.848, 1.179), abs=0.002)


@pytest.mark.parametrize("factor", [0.85, 1.0, 1.15])
def test_much_evidence_near_the_limit_determines_the_factor(factor: float) -> None:
    loads = [load * factor for load in (110.0, 120.0, 130.0, 140.0, 150.0)]

    found = capacity_factor([seen(load, factor) for load in loads] * 20, late_share, PRIOR)

    assert found.factor == pytest.approx(factor, rel=0.03)
    assert found.high / found.low < 1.1


def test_evidence_moves_the_factor_step_by_step() -> None:
    factors = [
        capacity_factor([seen(130.0, 0.85)] * windows, late_share, PRIOR).factor
        for windows in (0, 1, 4, 16)
    ]

    assert factors == sorted(factors, reverse=True)
    assert 0.85 < factors[2] < 0.97


def test_a_nearly_idle_pool_is_no_evidence_of_its_limit() -> None:
    found = capacity_factor([seen(10.0, 0.9)] * 50, late_share, PRIOR)

    assert found.factor == pytest.approx(1.0, abs=0.02)
    assert found.high / found.low > 1.3


def test_more_windows_are_stronger_evidence_than_more_requests_in_one() -> None:
    one = capacity_factor([seen(130.0, 0.85, requests=100_000)], late_share, PRIOR)
    several = capacity_factor([seen(130.0, 0.85, requests=1000)] * 10, late_share, PRIOR)

    assert several.factor < one.factor < 1


@given(
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 1e6), st.floats(0, 1)), max_size=10),
    st.floats(0.01, 0.5),
)
@settings(max_examples=25, deadline=None)
def test_the_factor_stays_within_reach_of_the_prior(
    several: list[tuple[float, float, float]], prior: float
) -> None:
    windows = [LateWindow(load, count, count * share) for load, count, share in several]

    found = capacity_factor(windows, late_share, prior)

    assert 0 < found.low <= found.factor <= found.high
    assert found.factor < 10


def test_impossible_windows_and_priors_are_refused() -> None:
    window = partial(LateWindow, 1.0)
    with pytest.raises(ValueError, match=r"requests is -1.*late is 2, of -1"):
        window(-1, 2)
    with pytest.raises(ValueError, match="prior_deviation is 0"):
        capacity_factor([], late_share, 0)
    assert replace(window(3, 2), late=3).late == 3
