from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.tune.knee_search import KneeEstimate, KneeSearch, knee_estimate
from disagg_cluster.tune.probed import GRID_STEP, SizeProbe, TimedSteps, size_grid
from disagg_exporter.capacity.curves.limits import find_knee
from support.probed_engines import affine

GRID = size_grid(16, 8192)
HALF = len(GRID) // 2
SAMPLES = 8


def searched(price: Callable[[int], float], noise: float = 0.0, seed: int = 1) -> TimedSteps:
    """The steps that a search times at this price."""
    dice, probed, search = random.Random(seed), TimedSteps(), KneeSearch(GRID, HALF)
    while (size := search.next_size(probed)) is not None:
        seconds = [price(size) * max(dice.gauss(1, noise), 0.1) for _ in range(SAMPLES)]
        probed = probed.plus(SizeProbe(size, tuple(seconds)))
    return probed


def estimate(probed: TimedSteps) -> KneeEstimate:
    found = knee_estimate(probed.points)
    assert found is not None
    return found


def true_knee(price: Callable[[int], float]) -> float:
    rates = {size: size / price(size) for size in range(GRID[0], GRID[-1] + 1, 4)}
    best = max(rates.values())
    return next(size for size, rate in rates.items() if rate >= 0.9 * best)


@settings(max_examples=4, deadline=None)
@given(st.floats(30, 200), st.floats(1e-6, 1e-3))
def test_the_knee_is_found_to_a_step_of_the_grid_with_half_the_probes(
    flat_tokens: float, token_seconds: float
) -> None:
    """Each step has a fixed cost, equal to that of `flat_tokens` tokens, and a cost per token."""
    price = affine(flat_tokens * token_seconds, token_seconds)

    probed = searched(price)

    assert len(probed.probes) <= HALF
    ratio = estimate(probed).knee_tokens / true_knee(price)
    assert 1 / GRID_STEP <= ratio <= GRID_STEP


@pytest.mark.parametrize("seed", range(2))
def test_the_knee_is_found_despite_noise(seed: int) -> None:
    price = affine(2e-3, 2e-5)

    found = estimate(searched(price, noise=0.02, seed=seed))

    assert 1 / GRID_STEP <= found.knee_tokens / true_knee(price) <= GRID_STEP


def test_the_estimate_equals_the_knee_of_the_capacity_model() -> None:
    probed = searched(affine(2e-3, 2e-5))

    limit = find_knee(probed.points)

    assert limit is not None
    assert estimate(probed).knee_tokens == limit.knee_tokens


def test_a_rate_that_rises_to_the_end_has_no_knee_and_needs_few_probes() -> None:
    probed = searched(affine(1.0, 1e-7))

    assert estimate(probed).limit is None
    assert len(probed.probes) <= HALF // 2


def test_an_engine_that_the_smallest_step_saturates_has_no_knee() -> None:
    found = estimate(searched(affine(1e-9, 1e-4)))

    assert found.limit is not None
    assert found.limit.knee_tokens is None


def test_no_more_probes_are_made_than_allowed() -> None:
    search, probed = KneeSearch(GRID, 3), TimedSteps()
    while (size := search.next_size(probed)) is not None:
        probed = probed.plus(SizeProbe(size, (1.0,) * SAMPLES))

    assert len(probed.probes) == 3


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_grid_has_its_ends_and_no_gap_wider_than_two_classes(one: int, other: int) -> None:
    low, high = sorted((one, other))

    grid = size_grid(low, high)

    assert (grid[0], grid[-1]) == (low, high)
    assert sorted(set(grid)) == list(grid)
    for one_size, next_size in pairwise(grid):
        assert next_size <= max(one_size + 1, math.ceil(one_size * GRID_STEP**2))


@pytest.mark.parametrize("seconds", [(), (0.0,), (math.inf,), (-1.0,)])
def test_a_probe_without_positive_finite_times_is_an_error(seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="no probe"):
        SizeProbe(64, seconds)
