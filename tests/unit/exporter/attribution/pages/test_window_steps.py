"""In how many steps there was a prompt, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from disagg_exporter.attribution.pages.window_cost import WindowCosts
from disagg_exporter.attribution.pages.window_steps import BUCKETS, Cutting, Sums, cutting
from disagg_exporter.engine_pages.histograms import BETWEEN_TOKENS_BOUNDS_SECONDS

COSTS = WindowCosts(step=0.022, request=1e-4, token=7e-5)


def _row(
    steps: float,
    prompts: float,
    prefill_tokens: float,
    decode_tokens: float,
    by_gap: Mapping[float, float] = {},
) -> Sums:
    """One stretch; `by_gap` are steps by a time between tokens."""
    buckets = np.zeros(BUCKETS)
    for seconds, count in by_gap.items():
        buckets[np.searchsorted(BETWEEN_TOKENS_BOUNDS_SECONDS, seconds)] += count
    row = np.array([steps, prompts, prefill_tokens, decode_tokens, *buckets])
    return Sums.of(row[None])


def test_prompts_are_assumed_to_arrive_at_random_steps() -> None:
    """100 prompts in 100 steps: some steps have two, and one in e has none."""
    steps = Cutting().steps(_row(100, 100, 20_000, 500), COSTS)

    assert steps.plain[0] == pytest.approx(100 / np.e)
    assert steps.plain[0] + steps.mixed[0] == pytest.approx(100)
    assert (steps.mixed[0] * steps.prompt_tokens @ steps.parts)[0] == pytest.approx(20_000)


def test_steps_without_a_prompt_are_at_most_the_decode_tokens() -> None:
    steps = Cutting().steps(_row(100, 100, 20_000, 10), COSTS)

    assert steps.plain[0] == pytest.approx(10)


def test_chunks_of_a_prompt_are_placed_in_steps_with_long_token_gaps() -> None:
    """One prompt of 12,000 tokens in six slow steps; none of them counted in the other stretch."""
    counted = _row(60, 1, 12_000, 240, {0.024: 58, 0.16: 2})
    before = _row(60, 0, 0, 240, {0.024: 56, 0.16: 4})
    both = Sums(*(np.concatenate(pair) for pair in zip(before, counted, strict=True)))

    found = cutting(both, COSTS)
    steps = found.steps(both, COSTS)

    assert steps.mixed.tolist() == [4.0, 2.0]
    assert (steps.mixed * steps.prompt_tokens[:, 0]).tolist() == pytest.approx([8000, 4000])


def test_chunks_that_are_not_slow_are_counted_by_the_step_token_limit() -> None:
    """Four prompts of 3,000 tokens, in chunks of 500 beside 12 requests."""
    sums = _row(100, 4, 12_000, 1200, {0.024: 100})

    found = cutting(sums, COSTS, step_tokens=512)
    steps = found.steps(sums, COSTS)

    assert not cutting(sums, COSTS).step_tokens
    assert steps.mixed[0] == pytest.approx(24)
    assert steps.plain[0] == pytest.approx(76)
    assert steps.prompt_tokens.tolist() == [[500.0]]


def test_chunks_that_are_all_slow_are_counted_by_their_token_gaps() -> None:
    sums = _row(60, 1, 12_000, 240, {0.024: 54, 0.16: 6})

    assert cutting(sums, COSTS, step_tokens=2048) == cutting(sums, COSTS)


def test_prompts_shorter_than_the_step_token_limit_are_not_cut() -> None:
    assert cutting(_row(100, 20, 4000, 1200), COSTS, step_tokens=2048) == Cutting()


@pytest.mark.parametrize(
    "by_gap",
    [{}, {0.024: 60}, {0.024: 59, 0.16: 1}],
    ids=["nobody tells", "no slow step", "a slow step for each prompt"],
)
def test_prompts_that_fit_into_a_step_are_not_cut(by_gap: Mapping[float, float]) -> None:
    assert cutting(_row(60, 1, 2000, 240, by_gap), COSTS) == Cutting()


def test_slow_steps_with_few_prompt_tokens_are_not_chunks() -> None:
    assert cutting(_row(60, 2, 120, 240, {0.024: 50, 0.16: 10}), COSTS) == Cutting()


def test_plain_and_mixed_steps_are_separated_at_the_sparsest_gap() -> None:
    """Decode-only steps may be slower than predicted, as with a full KV cache."""
    told = _row(200, 3, 40_000, 2000, {0.06: 100, 0.09: 1, 0.12: 40, 0.18: 59})

    steps = cutting(told, COSTS).steps(told, COSTS)

    assert steps.plain[0] == pytest.approx(100)


def test_a_single_pause_does_not_move_the_boundary_of_mixed_steps() -> None:
    told = _row(200, 3, 40_000, 2000, {0.024: 120, 0.06: 79, 0.3: 1})

    steps = cutting(told, COSTS).steps(told, COSTS)

    assert steps.plain[0] == pytest.approx(120)
