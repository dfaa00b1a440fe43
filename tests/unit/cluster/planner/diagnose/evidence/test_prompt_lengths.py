"""Which engines get the long prompts, tested by their number at each engine."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.prompt_lengths import (
    gathered_since,
    gathered_z,
    larger_share_z,
    longer_beside,
    longer_z,
)


def coming(before: tuple[int, int], since: tuple[int, int]) -> np.ndarray:
    """Short and long prompts at four engines in ten blocks; the numbers change in the last four.

    The first number is of the first engine, the second of each other. All get 20 in each block.
    """
    long = np.empty((4, 10))
    for blocks, (own, others) in ((slice(0, 6), before), (slice(6, 10), since)):
        long[0, blocks], long[1:, blocks] = own, others
    return np.stack([20.0 - long, long])


def test_long_prompts_that_all_go_to_one_engine_are_significant() -> None:
    assert gathered_z(coming((1, 1), (3, 0)), 0, 6) > 5


def test_more_long_prompts_at_all_engines_are_not_concentrated() -> None:
    assert gathered_z(coming((1, 1), (6, 6)), 0, 6) < 1


def test_an_engine_that_always_had_the_long_prompts_is_not_significant() -> None:
    assert gathered_z(coming((3, 0), (3, 0)), 0, 6) < 1


def test_a_few_long_prompts_at_one_engine_are_not_significant() -> None:
    counts = coming((0, 0), (0, 0))
    counts[1, 0, -2:] = 2.0

    assert gathered_z(counts, 0, 6) == 0.0


def test_a_searched_onset_is_found_with_less_significance_than_a_given_one() -> None:
    counts = coming((1, 1), (3, 0))

    onset, z = gathered_since(counts, 0, 10)

    assert onset == 6
    assert 4 < z < gathered_since(counts, 0, 6)[1]


def test_prompts_longer_at_all_engines_are_not_longer_relative_to_peers() -> None:
    count = np.full((3, 8), 10.0)
    tokens = 1000.0 * count
    tokens[:, 5:] *= 3.0

    assert longer_beside(tokens, count, 0, 5) == pytest.approx(0.0)
    tokens[0, 5:] *= 2.0
    assert longer_beside(tokens, count, 0, 5) == pytest.approx(np.log(2.0))
    assert longer_beside(tokens, np.zeros((3, 8)), 0, 5) == 0.0


def test_a_larger_request_share_is_significant_despite_noisy_logarithms() -> None:
    given = np.array([[23, 13, 13, 5]] * 9 + [[12, 9, 28, 4]] * 3, float).T

    z = larger_share_z(given, np.zeros(4, dtype=np.intp), np.full(4, 9))

    assert z[2] > 6
    assert (z[[0, 1, 3]] < 0).all()


def test_significance_is_calibrated_for_requests_routed_in_bursts() -> None:
    rng, peers, onset = np.random.default_rng(3), np.zeros(4, dtype=np.intp), np.full(4, 9)
    lots = [rng.poisson(15.0, size=(4, 12)).astype(float) for _ in range(100)]
    # A router that sends ten requests in a row to one engine.
    rows = [10.0 * rng.poisson(1.5, size=(4, 12)) for _ in range(100)]

    for drawn in (lots, rows):
        z = np.stack([larger_share_z(each, peers, onset) for each in drawn])
        assert 0.7 < z.std() < 1.3


def test_a_longer_mean_is_significant_for_many_prompts_and_not_for_few() -> None:
    few, many = (longer_z(np.full((4, 10), n), 0, 6, np.log(2.0), 0.8) for n in (3.0, 60.0))

    assert few < 2
    assert many > 5


def test_narrow_lengths_are_significant_sooner_and_shorter_means_never() -> None:
    count = np.full((4, 10), 3.0)

    assert longer_z(count, 0, 6, np.log(2.0), 0.2) > 5
    assert longer_z(count, 0, 6, -1.0, 0.2) == 0.0
    assert longer_z(np.zeros((4, 10)), 0, 6, 1.0, 0.2) == 0.0


def test_more_engines_lower_the_significance_of_the_longest_mean() -> None:
    few, many = (longer_z(np.full((n, 10), 20.0), 0, 6, np.log(1.5), 0.8) for n in (3, 10))

    assert many < few
