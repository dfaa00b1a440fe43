"""Prompt lengths: which are unprecedented, and the chance noise of wide distributions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.causes.giant_prompts import (
    PERHAPS_GIANTS_Z,
    LongPrompts,
    lower_bounds,
    more_frequent,
    unprecedented,
)
from disagg_cluster.planner.diagnose.causes.suspicion import SINCE_Z

TOKENS = np.array([250.0, 707.0, 1414.0, 3162.0, 7071.0, 14142.0, 44721.0, 150_000.0])
LEAST = np.array([0.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 100_000.0])
WIDE = np.array([1.0, 2.0, 4.0, 8.0, 6.0, 3.0, 0.0, 0.0])
NARROW = np.array([0.0, 0.0, 0.0, 22.0, 2.0, 0.0, 0.0, 0.0])


def coming(usual: np.ndarray, tokens_each: float) -> LongPrompts:
    """Eight blocks of usual prompts; the last two each have one in the bucket from 20,000 on."""
    counts = np.repeat(usual[:, None], 8, axis=1)
    sums = counts.T @ TOKENS
    counts[6, -2:] = 1.0
    sums[-2:] += tokens_each
    return LongPrompts(TOKENS, counts, TOKENS > 20_000, LEAST, sums)


def test_two_prompts_far_above_their_bucket_bound_are_unprecedented() -> None:
    z, onset = unprecedented(coming(WIDE, 95_000.0), 3)

    assert z > PERHAPS_GIANTS_Z
    assert onset == 6


@pytest.mark.parametrize(
    ("usual", "tokens", "is_sure"), [(NARROW, 95_000.0, True), (WIDE, 22_000.0, False)]
)
def test_a_single_prompt_is_unprecedented_if_it_is_far_above_all_others(
    usual: np.ndarray, tokens: float, *, is_sure: bool
) -> None:
    two = coming(usual, tokens)
    first = replace(two, counts=two.counts[:, :-1], sums=two.sums[:-1])

    z, onset = unprecedented(first, 3)

    assert (z >= SINCE_Z) if is_sure else (z < 2)
    assert onset == (6 if z > 0 else 0)


def test_two_prompts_just_above_a_wide_distribution_are_chance() -> None:
    assert unprecedented(coming(WIDE, 22_000.0), 3)[0] < 2


def test_few_prompts_do_not_determine_the_width_of_their_distribution() -> None:
    few, many = (unprecedented(coming(part * WIDE, 95_000.0), 3)[0] for part in (1 / 8, 1.0))

    assert few - many < 1
    assert few < 3.5


def test_without_sums_the_bucket_bound_gives_the_length() -> None:
    told = coming(NARROW, 25_000.0)
    untold = LongPrompts(told.tokens, told.counts, told.is_long, LEAST, np.full(8, np.nan))

    assert unprecedented(untold, 3)[0] > 3.5
    assert untold.mean_since(6) == 20_000.0


def test_prompts_of_a_length_that_occurred_before_are_not_unprecedented() -> None:
    usual = coming(NARROW, 25_000.0)
    counts = usual.counts.copy()
    counts[6, :6:2] = 1.0
    heard = LongPrompts(TOKENS, counts, usual.is_long, LEAST, np.full(8, np.nan))

    assert unprecedented(heard, 3) == (0.0, 0)


def test_prompts_in_the_last_bucket_may_be_as_short_as_the_empty_ones_below_it() -> None:
    counts = coming(NARROW, 0.0).counts[:, -2:]
    counts[[6, 7]] = counts[[7, 6]]

    assert lower_bounds(LEAST, counts).tolist() == [*LEAST[:-1], 10_000.0]
    assert lower_bounds(LEAST, counts + 1).tolist() == LEAST.tolist()
    assert lower_bounds(LEAST, 0 * counts).tolist() == [*LEAST[:-1], 500.0]


@pytest.mark.parametrize(("late", "is_sure"), [(2.0, False), (6.0, True)])
def test_a_few_long_prompts_that_happen_to_arrive_late_are_chance(
    late: float, is_sure: bool
) -> None:
    long = np.zeros(12)
    long[-2:] = late

    z, onset = more_frequent(long, np.full(12, 30.0), 3)

    assert (z > 5) if is_sure else (z < 3.5)
    assert onset == 10
