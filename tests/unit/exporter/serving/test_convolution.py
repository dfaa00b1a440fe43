import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Histogram
from disagg_exporter.serving.convolution import coefficients, convolved

BOUNDS = (0.1, 0.25, 0.5, 1.0)


def histogram(*inside: float, total: float = 0.0, bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    """A histogram with so many observations in each bucket."""
    return Histogram(bounds, tuple(accumulate(inside)), total)


def observed(values: list[float], bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    """The histogram of these values."""
    counts = [float(sum(value <= bound for value in values)) for bound in bounds]
    return Histogram(bounds, (*counts, float(len(values))), sum(values))


counts = st.lists(st.floats(0, 1e6), min_size=5, max_size=5)


@given(counts, counts)
def test_the_convolution_is_monotonic_and_has_the_count_of_the_second_part(
    first: list[float], second: list[float]
) -> None:
    whole = convolved(histogram(1.0 + first[0], *first[1:]), histogram(*second), BOUNDS)

    assert whole is not None
    assert whole.total == pytest.approx(sum(second))
    assert list(whole.counts) == sorted(whole.counts)
    assert whole.counts[0] >= 0


@given(counts)
def test_no_sum_is_shorter_than_one_of_its_parts(second: list[float]) -> None:
    alone = histogram(*second)

    whole = convolved(histogram(1.0, 2.0, 1.0, 3.0, 0.0), alone, BOUNDS)

    assert whole is not None
    slack = 1e-9 * (1 + sum(second))
    assert all(a <= b + slack for a, b in zip(whole.counts, alone.counts, strict=True))


def test_means_add_up() -> None:
    whole = convolved(
        histogram(2.0, 2.0, 0, 0, 0, total=0.5), histogram(0, 0, 8.0, 0, 0, total=3.0), BOUNDS
    )

    assert whole is not None
    assert whole.sum / whole.total == pytest.approx(0.5 / 4 + 3.0 / 8)


def test_without_observations_of_the_first_part_there_is_no_convolution() -> None:
    assert convolved(histogram(0, 0, 0, 0, 0), histogram(1.0, 0, 0, 0, 0), BOUNDS) is None


def test_observations_above_all_bounds_of_a_part_are_above_all_of_the_whole() -> None:
    whole = convolved(histogram(1.0, 0, 0, 0, 1.0), histogram(4.0, 0, 0, 0, 0), BOUNDS)

    assert whole is not None
    assert whole.counts[-2:] == pytest.approx((2.0, 4.0))


def test_shares_below_bounds_match_those_of_simulated_sums() -> None:
    """Evenly spread parts: a sum below 0.5 of one up to 0.25 and one up to 0.5 is 3 in 4."""
    chance = random.Random(1)
    first = [chance.uniform(0, 0.25) for _ in range(20_000)]
    second = [chance.uniform(0, 0.5) for _ in range(20_000)]
    sums = [a + b for a, b in zip(first, second, strict=True)]

    whole = convolved(observed(first), observed(second), BOUNDS)

    assert whole is not None
    truth = observed(sums)
    shares = [count / whole.total for count in whole.counts]
    assert shares == pytest.approx([count / truth.total for count in truth.counts], abs=0.02)
    assert shares[2] == pytest.approx(0.75, abs=0.02)


def test_the_bounds_of_the_parts_and_of_the_whole_may_differ() -> None:
    first = observed([0.05] * 10, (0.1, 1.0))
    second = observed([2.0] * 10, (1.0, 3.0, 5.0))

    whole = convolved(first, second, (1.0, 10.0))

    assert whole is not None
    assert whole.counts == pytest.approx((0.0, 10.0, 10.0), abs=0.2)
    assert coefficients((0.1, 1.0), (1.0, 3.0, 5.0), (1.0, 10.0)).shape == (2, 2, 3)
