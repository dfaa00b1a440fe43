from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.learned.learned_curve import (
    REACH,
    LearnedCurve,
    extended,
    pooled,
)

seconds = st.floats(1e-4, 10)
curves = st.lists(
    st.dictionaries(st.integers(1, 8192).map(float), seconds, min_size=1, max_size=8),
    min_size=1,
    max_size=5,
)


def curve(*several: dict[float, float]) -> LearnedCurve:
    found = pooled(several)
    assert found is not None
    return found


@given(curves, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_step_never_takes_less(
    several: list[dict[float, float]], one: float, other: float
) -> None:
    found = curve(*several)
    low, high = (part * REACH * found.largest for part in sorted((one, other)))

    assert 0 < found.at(low) <= found.at(high) * (1 + 1e-9)


def test_each_size_is_the_median_of_the_engines_that_cover_it() -> None:
    found = curve({1: 1.0, 3: 3.0}, {1: 1.0, 3: 3.0}, {1: 9.0, 3: 9.0}, {3: 3.0, 5: 5.0})

    assert (found.sizes, found.seconds) == ((1, 3, 5), (1.0, 3.0, 5.0))
    assert found.at(2) == 2.0
    assert found.engines == 4


def test_engines_that_differ_have_a_spread_and_one_alone_has_none() -> None:
    assert curve({1: 1.0}).spread is None
    assert curve({1: 1.0}, {1: 1.0}).spread == 0.0
    assert curve({1: 0.9}, {1: 1.0}, {1: 1.1}).spread == pytest.approx(0.148, abs=0.001)


def test_a_curve_extrapolates_up_to_its_reach_only() -> None:
    found = curve({10: 1.0, 20: 2.0, 40: 4.0})

    assert found.at(60) == pytest.approx(6.0)
    with pytest.raises(UnseenStepError, match="larger than 40 was seen, and one of 81"):
        found.at(81)


def test_a_single_point_extrapolates_in_proportion() -> None:
    assert curve({10: 1.0}).at(20) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "nonsense",
    [{}, {0: 1.0}, {-1: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}, {float("inf"): 1.0}],
)
def test_points_that_cannot_be_steps_are_ignored(nonsense: dict[float, float]) -> None:
    assert pooled([nonsense]) is None
    assert pooled([nonsense, {2: 1.0}]) == pooled([{2: 1.0}])


def test_falling_noise_is_averaged_and_not_raised() -> None:
    assert curve({1: 1.0, 2: 4.0, 3: 2.0, 4: 3.0}).seconds == (1.0, 3.0, 3.0, 3.0)


def test_a_curve_is_extended_by_the_cost_model_scaled_to_its_ends() -> None:
    seen, model = {16: 0.02, 32: 0.03}, {1: 0.005, 16: 0.01, 20: 9.0, 64: 0.02, 48: 0.015}

    found = extended(seen, model)

    high = 0.03 / (9.0 + (0.015 - 9.0) * 12 / 28)
    assert found == pytest.approx({1: 0.01, 16: 0.02, 32: 0.03, 48: 0.015 * high, 64: 0.02 * high})
    assert extended({}, model) == model
    assert extended(seen, {}) == seen
