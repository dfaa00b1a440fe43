"""A change counts if it persists, after a long enough past, and exceeds the noise of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.diagnose.evidence.known import known_mean, known_median, known_sum
from disagg_cluster.planner.diagnose.evidence.shifts import (
    block_means,
    block_sums,
    change_since,
    peer_groups,
    peer_z,
    shift_of,
    standing,
    unless_better,
)


def noisy(*levels: float, deviation: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(len(levels))
    return np.array([levels]) + deviation * rng.standard_normal((1, len(levels)))


def test_a_step_change_is_found_with_its_size_and_onset() -> None:
    found = shift_of(noisy(*[0.0] * 10, *[0.7] * 4))

    assert found.change[0] == pytest.approx(0.7, abs=0.15)
    assert found.onset[0] == 10
    assert found.z[0] > 8


def test_a_change_that_is_over_is_not_found() -> None:
    assert shift_of(noisy(*[0.0] * 8, *[0.7] * 4, 0.0, 0.0)).z[0] < 3


def test_a_single_outlying_block_is_no_change() -> None:
    assert abs(shift_of(noisy(*[0.0] * 6, 5.0, *[0.0] * 7)).z[0]) < 4


def test_a_change_that_grows_stands_before_its_last_but_one_block_is_half_of_it() -> None:
    """As a queue does; a block at the former level, before the last, is no part of it."""
    before = [0.0, 0.3, 0.0, -0.3, 0.0, 0.3, 0.0, -0.3, 0.0]
    grown, sudden = (np.array([[*before, last_but_one, 6.0]]) for last_but_one in (0.8, 0.0))

    assert shift_of(grown).z[0] > 4
    assert shift_of(sudden).z[0] == 0


def test_a_block_that_may_be_low_by_chance_ends_no_change_that_the_last_two_together_show() -> None:
    low = np.array([[0.0, 0.1, -0.1, 0.0, 0.1, -0.1, 0.7, 0.8, 0.3, 0.7]])

    assert shift_of(low).z[0] == 0
    assert shift_of(low, np.array([0.12])).z[0] > 4
    low[0, -2:] = 0.0, 2.5
    assert shift_of(low, np.array([0.12])).z[0] == 0


def test_too_short_a_past_gives_no_significance() -> None:
    assert shift_of(noisy(0.0, 0.0, 0.7, 0.7)).z[0] == 0


def test_unknown_blocks_are_skipped() -> None:
    levels = noisy(*[0.0] * 10, *[0.7] * 4)
    levels[0, [2, 5, 11]] = np.nan

    assert shift_of(levels).z[0] > 6


def test_chance_noise_is_a_lower_bound_of_the_deviation() -> None:
    calm = noisy(*[0.0] * 10, *[0.3] * 3, deviation=0.001)

    assert shift_of(calm).z[0] > 8
    assert shift_of(calm, 0.3).z[0] < 3


def test_the_change_since_a_given_onset_is_significant_without_a_search() -> None:
    levels = noisy(*[0.0] * 10, *[0.2] * 4)

    change, z = change_since(levels, np.array([0.05]), np.array([10]))

    assert change[0] == pytest.approx(0.2, abs=0.1)
    assert z[0] > 3
    assert change_since(levels, np.array([0.05]), np.array([14]))[1][0] == 0


def test_one_deviating_engine_of_three_peers_is_significant_and_the_others_are_not() -> None:
    levels = np.concatenate([noisy(*[level] * 8) for level in (0.0, 0.0, 0.8)])

    apart, z = peer_z(shift_of(levels), peer_groups(np.zeros(3, dtype=np.intp)))

    assert apart[2] == pytest.approx(0.8, abs=0.2)
    assert z[2] > 5
    assert abs(z[:2]).max() < 4


def test_a_noisy_single_peer_lowers_the_significance() -> None:
    far = noisy(*[0.8] * 8)
    groups = peer_groups(np.zeros(2, dtype=np.intp))
    calm = shift_of(np.concatenate([far, noisy(*[0.0] * 8)]))
    wild = replace(calm, deviation=np.array([calm.deviation[0], 0.5]))

    assert peer_z(wild, groups)[1][0] < peer_z(calm, groups)[1][0] / 2


def test_a_constant_deviation_is_measured_over_all_blocks() -> None:
    levels = np.concatenate([noisy(*[level] * 16, deviation=0.2) for level in (0.0, 0.0, 0.8)])
    groups = peer_groups(np.zeros(3, dtype=np.intp))
    shift = shift_of(levels)
    stood = standing(levels, shift)

    assert stood.onset[2] == 0
    assert peer_z(stood, groups, 16 - stood.onset)[1][2] > 1.3 * peer_z(shift, groups)[1][2]


def test_a_significant_change_stands_since_its_onset() -> None:
    levels = noisy(*[0.0] * 10, *[0.7] * 4)

    stood = standing(levels, shift_of(levels))

    assert stood.onset[0] == 10
    assert stood.after[0] == pytest.approx(0.7, abs=0.15)


def test_an_engine_without_peers_does_not_deviate() -> None:
    apart, z = peer_z(shift_of(noisy(*[1.0] * 8)), peer_groups(np.zeros(1, dtype=np.intp)))

    assert (apart[0], z[0]) == (0, 0)


def test_blocks_end_with_the_last_bin() -> None:
    values = np.array([[9.0, 1.0, 2.0, 3.0, np.nan]])

    assert block_sums(values, 2).tolist() == [[3.0, 3.0]]
    assert block_means(values, 2).tolist() == [[1.5, 3.0]]


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), max_size=9))
def test_means_medians_and_sums_ignore_unknown_values(values: list[float]) -> None:
    known = [value for value in values if not np.isnan(value)]
    found = np.array([values], float).reshape(1, -1)

    if known:
        assert known_median(found)[0] == pytest.approx(np.median(known))
        assert known_mean(found)[0] == pytest.approx(np.mean(known))
        assert known_sum(found)[0] == pytest.approx(sum(known))
    else:
        assert np.isnan([known_median(found)[0], known_mean(found)[0], known_sum(found)[0]]).all()


def test_peer_groups_are_batched_by_size() -> None:
    found = peer_groups(np.array([5, 1, 5, 2, 1, 7, 7, 7]))

    assert sorted(map(np.ndarray.tolist, found)) == [[[1, 4], [0, 2]], [[3]], [[5, 6, 7]]]


def test_an_improved_engine_does_not_make_its_peer_deviate() -> None:
    same, lucky = noisy(*[0.0] * 14), noisy(*[0.0] * 10, *[-1.0] * 4)
    shift = shift_of(np.vstack([same, lucky]))
    groups = peer_groups(np.zeros(2, dtype=np.intp))

    assert peer_z(shift, groups)[1][0] > 6
    assert abs(peer_z(shift, groups, usual=unless_better(shift))[1][0]) < 2
    assert unless_better(shift)[0] == shift.after[0]
