"""The computed share of cached prompts, and its chance noise."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.cache_hits import (
    computed_by_chance,
    computed_more_z,
    computed_share,
    hitless_z,
)
from disagg_cluster.planner.diagnose.evidence.readings import Readings
from disagg_cluster.planner.diagnose.evidence.shifts import shift_of

ALL_ALIKE = np.zeros(2, dtype=np.intp)


def drawn(served: float, *, fails: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two engines, 12 blocks: half of each prompt is cached; of one engine's last prompts, none."""
    rng = np.random.default_rng(3)
    counts = np.full((2, 12), served)
    prompts = 4000.0 * counts
    hits = rng.binomial(int(served), 0.8, counts.shape) * 0.6
    if fails:
        hits[0, 9:] = 0.0
    return prompts - 4000.0 * hits, prompts, counts


def test_a_fully_cached_prompt_has_a_finite_logarithm() -> None:
    found = computed_share(np.array([[0.0, 1e4]]), np.array([[1e4, 1e4]]), np.array([[1.0, 1.0]]))

    assert found[0, 1] == pytest.approx(0.0)
    assert -4 < found[0, 0] < -2


def test_without_prompts_the_computed_share_is_unknown() -> None:
    found = computed_share(np.array([[0.0]]), np.array([[0.0]]), np.array([[np.nan]]))

    assert np.isnan(found).all()


@pytest.mark.parametrize("served", [2.0, 40.0])
def test_random_cache_hits_are_no_change(served: float) -> None:
    computed, prompts, counts = drawn(served)
    chance = computed_by_chance(computed, prompts, counts, ALL_ALIKE)

    assert np.abs(shift_of(computed_share(computed, prompts, counts), chance).z).max() < 4


def test_chance_noise_is_larger_for_fewer_prompts() -> None:
    few, many = (computed_by_chance(*drawn(served), ALL_ALIKE) for served in (3.0, 60.0))

    assert (few > 2 * many).all()


def test_chance_noise_is_that_of_random_hits_of_prompts_of_several_lengths() -> None:
    rng = np.random.default_rng(7)
    counts = np.full((4, 18), 15.0)
    of_four = np.zeros(4, dtype=np.intp)
    expected, met = [], []
    for _ in range(50):
        lengths = np.maximum(4000.0 * rng.lognormal(-0.08, 0.4, (15, *counts.shape)), 2500.0)
        hits = 2400.0 * (rng.random(lengths.shape) < 0.4)
        computed, prompts = (lengths - hits).sum(axis=0), lengths.sum(axis=0)
        expected.append(computed_by_chance(computed, prompts, counts, of_four)[0])
        met.append(np.std(computed_share(computed, prompts, counts)))

    assert 0.93 < np.mean(expected) / np.mean(met) < 1.07


def test_a_failed_cache_is_a_significant_change() -> None:
    computed, prompts, counts = drawn(40.0, fails=True)
    chance = computed_by_chance(computed, prompts, counts, ALL_ALIKE)
    shift = shift_of(computed_share(computed, prompts, counts), chance)

    assert shift.z[0] > 5
    assert abs(shift.z[1]) < 4


def apart(shares: tuple[float, float], served: tuple[float, float]) -> np.ndarray:
    """Two peers and an engine without any, over six blocks."""
    counts = np.repeat(np.array([*served, 9.0])[:, None], 6, axis=1)
    prompts = 4000.0 * counts
    computed = prompts * np.array([*shares, 1.0])[:, None]
    onset = np.full(3, 2, dtype=np.intp)
    return computed_more_z(computed, prompts, counts, onset, np.array([0, 0, 1]))


def test_few_prompts_make_a_difference_between_peers_insignificant() -> None:
    z = apart((0.6, 0.04), (4.0, 1.0))

    assert 0 < z[0] < 2.5
    assert z[1] == pytest.approx(-z[0])


def test_many_prompts_make_a_difference_between_peers_significant() -> None:
    assert apart((0.6, 0.04), (40.0, 10.0))[0] > 5


def test_engines_equal_to_their_peers_or_without_peers_do_not_deviate() -> None:
    assert apart((0.6, 0.6), (40.0, 10.0)) == pytest.approx([0.0, 0.0, 0.0])


def told(cached: np.ndarray, served: float) -> Readings:
    """Engines that compute 1000 tokens of the prompts of each bin, besides those cached."""
    every = np.full(cached.shape, 1000.0)
    values = {"cached_tokens": cached, "computed_tokens": every}
    counts = {"entry_count": every * served / 1000, "first_count": np.zeros(cached.shape)}
    places = tuple(("c", "n", str(row)) for row in range(len(cached)))
    return Readings(places, cached.shape[1], {**values, **counts})


def test_a_cache_without_further_hits_is_significant() -> None:
    cached = np.full((3, 20), 1000.0)
    cached[0, 14:] = 0.0
    cached[1, 14:19] = 0.0

    z = hitless_z(told(cached, 4.0), np.ones(3, dtype=np.bool_), 4)

    assert z[0] > 4
    assert list(z[1:]) == [0.0, 0.0]


def test_missing_hits_are_more_significant_for_more_prompts_and_higher_past_hit_rates() -> None:
    cached = np.full((2, 20), 1000.0)
    cached[1] = 100.0
    cached[:, 14:] = 0.0
    few, many = (hitless_z(told(cached, n), np.ones(2, dtype=np.bool_), 4) for n in (1.0, 9.0))

    assert many[0] > 2 * few[0]
    assert many[1] < many[0] / 2


def test_a_cache_that_never_had_hits_has_not_failed() -> None:
    z = hitless_z(told(np.zeros((1, 20)), 4.0), np.ones(1, dtype=np.bool_), 4)

    assert z[0] == 0.0
