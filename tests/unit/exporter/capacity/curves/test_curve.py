from __future__ import annotations

import numpy as np
import pytest

from disagg_exporter.capacity.curves.curve import (
    FORGET_NS,
    SAMPLES_A_CLASS,
    Curve,
    class_of,
    classes_of,
)

HOUR_NS = 3600 * 1_000_000_000


def test_sizes_are_kept_in_four_classes_to_a_doubling() -> None:
    classes = [class_of(size) for size in (1, 2, 4, 256, 512)]

    assert classes == [0, 4, 8, 32, 36]
    assert class_of(10**30) == class_of(10**31)


def test_classes_of_many_sizes_match_single_ones() -> None:
    sizes = [*range(1, 5000), *(2.0**n for n in range(63)), 1e300]

    assert classes_of(np.array(sizes, np.float64)).tolist() == [class_of(size) for size in sizes]


def test_a_point_is_the_median_of_its_class() -> None:
    """A graph capture of 10 s among steps of 10 ms is no property of their size."""
    curve = Curve()
    for seconds in (10.0, 0.010, 0.011, 0.012, 0.009):
        curve.add(100, seconds, now_ns=0)
    curve.add(1000, 0.05, now_ns=0, full=True)

    small, large = curve.points(now_ns=0)

    assert (small.size, small.seconds, small.samples, small.full) == (100, 0.011, 5, 0)
    assert small.scatter == pytest.approx(1.4826 * 0.001 / 0.011)
    assert (large.size, large.samples, large.full) == (1000, 1, 1)


def test_a_class_follows_its_latest_steps() -> None:
    curve = Curve()
    for seconds in [0.010] * SAMPLES_A_CLASS + [0.020] * SAMPLES_A_CLASS:
        curve.add(100, seconds, now_ns=0)

    (point,) = curve.points(now_ns=0)

    assert (point.seconds, point.samples) == (0.020, SAMPLES_A_CLASS)


def test_a_size_that_is_rare_now_is_kept_for_hours_and_then_forgotten() -> None:
    curve = Curve()
    curve.add(1000, 0.05, now_ns=0)
    for hour in range(6):
        curve.add(10, 0.01, now_ns=hour * HOUR_NS)

    assert [point.size for point in curve.points(now_ns=FORGET_NS)] == [10, 1000]
    assert [point.size for point in curve.points(now_ns=FORGET_NS + 1)] == [10]


@pytest.mark.parametrize(("size", "seconds"), [(0, 0.01), (100, 0.0), (0.5, 0.01), (100, -1.0)])
def test_a_step_without_work_or_time_is_not_recorded(size: float, seconds: float) -> None:
    curve = Curve()

    curve.add(size, seconds, now_ns=0)

    assert curve.points(now_ns=0) == ()
