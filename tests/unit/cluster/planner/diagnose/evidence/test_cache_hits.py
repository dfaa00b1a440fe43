"""Cached prompts: how much is computed of them, and what of it is luck."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.cache_hits import computed_by_chance, computed_share
from disagg_cluster.planner.diagnose.evidence.shifts import shift_of

ALL_ALIKE = np.zeros(2, dtype=np.intp)


def drawn(served: float, *, fails: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two engines, 12 blocks: half of each prompt is cached, at one engine's end of none."""
    rng = np.random.default_rng(3)
    counts = np.full((2, 12), served)
    prompts = 4000.0 * counts
    hits = rng.binomial(int(served), 0.8, counts.shape) * 0.6
    if fails:
        hits[0, 9:] = 0.0
    return prompts - 4000.0 * hits, prompts, counts


def test_a_prompt_that_is_cached_whole_is_not_infinitely_far_off() -> None:
    found = computed_share(np.array([[0.0, 1e4]]), np.array([[1e4, 1e4]]), np.array([[1.0, 1.0]]))

    assert found[0, 1] == pytest.approx(0.0)
    assert -4 < found[0, 0] < -2


def test_where_nobody_was_served_nothing_is_known() -> None:
    found = computed_share(np.array([[0.0]]), np.array([[0.0]]), np.array([[np.nan]]))

    assert np.isnan(found).all()


@pytest.mark.parametrize("served", [2.0, 40.0])
def test_luck_alone_is_no_change(served: float) -> None:
    computed, prompts, counts = drawn(served)
    chance = computed_by_chance(computed, prompts, counts, ALL_ALIKE)

    assert np.abs(shift_of(computed_share(computed, prompts, counts), chance).z).max() < 4


def test_chance_is_greater_where_fewer_are_served() -> None:
    few, many = (computed_by_chance(*drawn(served), ALL_ALIKE) for served in (3.0, 60.0))

    assert (few > 2 * many).all()


def test_a_cache_that_fails_is_beyond_chance() -> None:
    computed, prompts, counts = drawn(40.0, fails=True)
    chance = computed_by_chance(computed, prompts, counts, ALL_ALIKE)
    shift = shift_of(computed_share(computed, prompts, counts), chance)

    assert shift.z[0] > 5
    assert abs(shift.z[1]) < 4
