from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.history.load_series import (
    MOST_STEPS,
    LoadSpanError,
    load_series,
)

_SAMPLES = st.lists(st.tuples(st.integers(-5000, 5000), st.floats(0, 1e6)), max_size=50)
_NAN = float("nan")


@given(_SAMPLES, st.randoms())
def test_the_order_of_samples_does_not_matter(samples: list[tuple[int, float]], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(samples, len(samples))
    one, other = (load_series(*_apart(each), 60.0) for each in (samples, shuffled))

    assert one.start_seconds == other.start_seconds
    np.testing.assert_allclose(one.values, other.values)


def test_steps_without_samples_are_gaps_and_duplicates_are_averaged() -> None:
    found = load_series([240, 60, 60, 0], [4.0, 1.0, 3.0, 7.0], 60.0)

    assert found.start_seconds == 0.0
    assert found.end_seconds == 300.0
    assert found.known == 3
    np.testing.assert_array_equal(found.values, [7.0, 2.0, _NAN, _NAN, 4.0])


def test_invalid_values_are_left_out() -> None:
    found = load_series([0, 60, 120, 180, _NAN], [1.0, -2.0, _NAN, 5.0, 6.0], 60.0)

    np.testing.assert_array_equal(found.values, [1.0, _NAN, _NAN, 5.0])


def test_no_samples_are_an_empty_series() -> None:
    assert len(load_series([], [], 60.0).values) == 0


def test_series_with_invalid_values_align_with_others() -> None:
    found = load_series([0.0, 120.0], [_NAN, -1.0], 60.0)

    assert np.isnan(found.values).tolist() == [True, True, True]
    assert found.known == 0


def test_series_on_one_time_grid_align_despite_gaps() -> None:
    times = [0.0, 60.0, 120.0]
    one, other = (load_series(times, loads, 60.0) for loads in ([1, 2, _NAN], [_NAN, -1, 3]))

    assert one.start_seconds == other.start_seconds == 0.0
    np.testing.assert_array_equal(one.values, [1.0, 2.0, _NAN])
    np.testing.assert_array_equal(other.values, [_NAN, _NAN, 3.0])


@pytest.mark.parametrize("step_seconds", [0.0, -1.0, float("inf"), _NAN])
def test_a_step_must_be_positive(step_seconds: float) -> None:
    with pytest.raises(ValueError, match="a step of"):
        load_series([0.0], [1.0], step_seconds)


@pytest.mark.parametrize(
    ("stray", "step_seconds"), [(1.7e12, 60.0), (1e300, 60.0), (1.7e308, 1e-300), (-1e300, 60.0)]
)
def test_one_outlying_time_is_an_error_without_allocation(
    stray: float, step_seconds: float
) -> None:
    with pytest.raises(LoadSpanError, match=f"at most {MOST_STEPS} are read: is one time far"):
        load_series([1.0, stray], [1.0, 1.0], step_seconds)


def test_a_time_just_before_a_step_belongs_to_it() -> None:
    assert load_series([119.99999999], [1.0], 60.0).start_seconds == 120.0


def _apart(samples: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    return [float(t) for t, _ in samples], [v for _, v in samples]
