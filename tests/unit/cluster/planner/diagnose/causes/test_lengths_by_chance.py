"""Lengths of prompts: which are unheard of, and how far chance moves the spread of wide ones."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.causes.giant_prompts import (
    PERHAPS_GIANTS_Z,
    LongPrompts,
    spread_by_chance,
    unheard_of,
)

TOKENS = np.array([250.0, 707.0, 1414.0, 3162.0, 7071.0, 14142.0, 44721.0, 150_000.0])
WIDE = np.array([1.0, 2.0, 4.0, 8.0, 6.0, 3.0, 0.0, 0.0])
NARROW = np.array([0.0, 0.0, 0.0, 22.0, 2.0, 0.0, 0.0, 0.0])


def coming(usual: np.ndarray, tokens_each: float) -> LongPrompts:
    """Eight blocks of usual prompts; in the last two one is in the bucket from 20,000 on."""
    counts = np.repeat(usual[:, None], 8, axis=1)
    sums = counts.T @ TOKENS
    counts[6, -2:] = 1.0
    sums[-2:] += tokens_each
    return LongPrompts(TOKENS, counts, TOKENS > 20_000, 20_000.0, sums)


def test_two_that_are_far_longer_than_their_bucket_begins_are_unheard_of() -> None:
    z, onset = unheard_of(coming(WIDE, 95_000.0))

    assert z > PERHAPS_GIANTS_Z
    assert onset == 6


def test_two_just_beyond_what_wide_lengths_reach_are_chance() -> None:
    assert unheard_of(coming(WIDE, 22_000.0))[0] < 2


def test_of_few_prompts_nobody_knows_how_wide_they_are() -> None:
    few, many = (unheard_of(coming(part * WIDE, 95_000.0))[0] for part in (1 / 8, 1.0))

    assert few - many < 1
    assert few < 3.5


def test_without_sums_the_bucket_alone_tells() -> None:
    told = coming(NARROW, 25_000.0)
    untold = LongPrompts(told.tokens, told.counts, told.is_long, 20_000.0, np.full(8, np.nan))

    assert unheard_of(untold)[0] > 3.5
    assert untold.mean_since(6) == 20_000.0


def test_wide_lengths_stray_more_and_many_prompts_less() -> None:
    def chance(usual: np.ndarray, times: float) -> float:
        return spread_by_chance(TOKENS, np.repeat(times * usual[:, None], 8, axis=1))

    assert chance(WIDE, 1.0) > 3 * chance(NARROW, 1.0)
    assert chance(WIDE, 1.0) > 3 * chance(WIDE, 16.0)


def test_where_nobody_tells_of_lengths_there_is_no_chance_to_know() -> None:
    assert spread_by_chance(np.empty(0), np.empty((0, 8))) == 0.0
