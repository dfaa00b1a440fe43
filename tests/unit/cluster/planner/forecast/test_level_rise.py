from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.forecast.forecaster import at_present_level
from disagg_cluster.planner.history.load_series import Floats

DAY, STEP_SECONDS = 144, 600.0


def course(steps: int, noise: float = 0.05) -> Floats:
    """A load with a day in it."""
    t = np.arange(steps) / DAY
    drawn = np.random.default_rng(1).normal(0, noise, steps)
    found: Floats = 100 * np.exp(0.8 * np.sin(2 * np.pi * t) + drawn)
    return found


@pytest.mark.parametrize("since", [36, 72, DAY, 3 * DAY])
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_what_came_before_a_rise_is_multiplied_by_it(share: float, since: int) -> None:
    """By the same times of day: a rise at night is as large as one at noon."""
    whole = course(7 * DAY + since)
    values = np.r_[share * whole[: 7 * DAY], whole[7 * DAY :]]
    values[20:40] = np.nan

    raised, rise = at_present_level(values, STEP_SECONDS)

    assert rise == pytest.approx(7 * DAY, abs=2)
    known = np.isfinite(raised)
    assert known.sum() == len(values) - 20
    assert raised[known] == pytest.approx(whole[known], rel=0.05)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3 * DAY),
        np.full(3 * DAY, 100.0),
        course(10 * DAY),
        # Half, and three times as much; a fall; a spike; the first morning; up and down again.
        np.r_[course(5 * DAY), 3 * course(2 * DAY)],
        np.r_[course(5 * DAY), 0.02 * course(2 * DAY)],
        np.r_[0.02 * course(5 * DAY), np.full(19, 100.0)],
        np.r_[np.full(100, 1.0), np.full(200, 100.0)],
        np.tile(np.r_[np.full(DAY, 1.0), np.full(DAY, 100.0)], 5),
    ],
)
def test_a_load_that_did_not_rise_and_stay_is_left_as_it_is(values: Floats) -> None:
    raised, rise = at_present_level(values, STEP_SECONDS)

    assert rise == 0
    assert raised is values


_VALUES = st.one_of(st.just(float("nan")), st.just(0.0), st.floats(0.0, 1e9))


@given(st.lists(_VALUES, max_size=60), st.lists(_VALUES, max_size=60))
def test_any_history_stays_finite_and_as_it_is_since_the_rise(
    before: list[float], since: list[float]
) -> None:
    values = np.array([*before, *since])

    raised, rise = at_present_level(values, 43_200.0)

    np.testing.assert_array_equal(np.isfinite(raised), np.isfinite(values))
    np.testing.assert_array_equal(raised[rise:], values[rise:])
