"""Who gets the long prompts: told from chance by the engines they come to, not by their lengths."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.prompt_lengths import (
    gathered_since,
    gathered_z,
    longer_beside,
)


def coming(before: tuple[int, int], since: tuple[int, int]) -> np.ndarray:
    """Short and long prompts at four engines, ten blocks; of the last four another number is long.

    The first number is of the first engine, the second of each other. All get 20 in each block.
    """
    long = np.empty((4, 10))
    for blocks, (own, others) in ((slice(0, 6), before), (slice(6, 10), since)):
        long[0, blocks], long[1:, blocks] = own, others
    return np.stack([20.0 - long, long])


def test_long_prompts_that_all_go_to_one_engine_are_beyond_chance() -> None:
    assert gathered_z(coming((1, 1), (3, 0)), 0, 6) > 5


def test_more_long_prompts_at_all_engines_gather_nowhere() -> None:
    assert gathered_z(coming((1, 1), (6, 6)), 0, 6) < 1


def test_an_engine_that_always_had_the_long_ones_has_not_gathered_them() -> None:
    assert gathered_z(coming((3, 0), (3, 0)), 0, 6) < 1


def test_a_few_long_prompts_may_go_anywhere() -> None:
    counts = coming((0, 0), (0, 0))
    counts[1, 0, -2:] = 2.0

    assert gathered_z(counts, 0, 6) == 0.0


def test_without_a_moment_to_look_at_the_best_is_found_and_believed_less() -> None:
    counts = coming((1, 1), (3, 0))

    onset, z = gathered_since(counts, 0, 10)

    assert onset == 6
    assert 4 < z < gathered_since(counts, 0, 6)[1]


def test_prompts_that_are_longer_everywhere_are_no_longer_beside_the_others() -> None:
    count = np.full((3, 8), 10.0)
    tokens = 1000.0 * count
    tokens[:, 5:] *= 3.0

    assert longer_beside(tokens, count, 0, 5) == pytest.approx(0.0)
    tokens[0, 5:] *= 2.0
    assert longer_beside(tokens, count, 0, 5) == pytest.approx(np.log(2.0))
    assert longer_beside(tokens, np.zeros((3, 8)), 0, 5) == 0.0
