"""Which engines get the long prompts, tested by their number at each engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.engine_changes import engine_changes
from disagg_cluster.planner.diagnose.evidence.fleet import read_fleet
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import (
    PROMPT_LENGTHS,
    PromptLengths,
    gathered_since,
    gathered_z,
    lengths_at,
    lengths_by_chance,
    longer_beside,
    longer_z,
    relative_length,
    with_unfinished,
)
from disagg_cluster.planner.diagnose.evidence.readings import Readings
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from support.diagnosed_lines import PREFILL
from support.diagnosis_windows import WindowMaker


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


def test_an_engine_with_fewer_bounds_has_its_prompts_in_the_next_longer_bucket() -> None:
    times = 1e6 + np.arange(0.0, 61.0, 15.0)

    def told(engine: str, le: str, per_scrape: float) -> ScrapedSeries:
        labels = {"cluster": "c", "node": "n", "engine": engine, "role": "prefill", "le": le}
        return ScrapedSeries(labels, times, per_scrape * np.arange(5.0))

    info = tuple(
        ScrapedSeries(
            {"cluster": "c", "node": "n", "engine": engine, "role": "prefill", "model_name": "m"},
            times,
            np.ones(5),
        )
        for engine in ("new", "old")
    )
    buckets = (
        *(told("new", le, n) for le, n in (("20000", 5), ("50000", 7), ("+Inf", 8))),
        *(told("old", le, n) for le, n in (("20000", 5), ("+Inf", 8))),
    )
    families = {"disagg_engine_info": info, PROMPT_LENGTHS: buckets}

    fleet = read_fleet(SeriesWindow(times[0], times[-1], families))

    assert fleet is not None
    new, old = (fleet.prompts.counts[:, row, -1].tolist() for row in (0, 1))
    assert (new, old) == ([5.0, 2.0, 1.0], [5.0, 0.0, 3.0])


def test_lengths_of_one_engine_are_compared_with_those_of_the_others() -> None:
    counts = coming((1, 1), (3, 0))
    tokens = np.array([1000.0, 30_000.0])
    sums = np.tensordot(tokens, counts, axes=1)
    own, others = sums[0, -1] / sums[0, 0], sums[1, -1] / sums[1, 0]

    found = lengths_at(tokens, counts, (sums, counts.sum(axis=0)), 0, 6)

    assert found.onset == 6
    assert found.longer == pytest.approx(np.log(own / others))
    assert found.gathered_z > 5
    assert 0 < found.mean_z < found.gathered_z


BOUNDS = np.array([0.0, 5000.0, 20_000.0, 50_000.0])


def unfinished(
    held: list[float], done: list[float], running: list[float], *, is_prefill: bool = True
) -> list[float]:
    """The prompts by length in the last bin, of an engine that usually has one of 2,000 tokens."""
    counts = np.zeros((4, 1, len(held)))
    counts[0] = 1.0
    values = {
        "kv_usage": np.array(held) / 100_000.0,
        "kv_tokens": np.full(len(held), 100_000.0),
        "running": np.array(running),
        "computed_tokens": np.array(done),
        "cached_tokens": np.full(len(held), np.nan),
    }
    readings = Readings((("c", "n", "e"),), len(held), {n: v[None] for n, v in values.items()})
    prompts = PromptLengths(BOUNDS, BOUNDS + 2000.0, counts, np.full((1, len(held)), 2000.0))
    return list(with_unfinished(prompts, readings, np.array([is_prefill])).counts[:, 0, -1])


def test_a_prompt_of_which_much_is_computed_counts_before_it_is_done() -> None:
    found = unfinished([0.0, 2e3, 30e3, 64e3], [2e3, 2e3, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0])

    assert found == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("held", "done", "running"),
    [
        ([0.0, 0.0, 1e3, 2e3], [2e3, 2e3, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]),
        ([60e3, 62e3, 62e3, 62e3], [2e3, 2e3, 2e3, 0.0], [1.0, 1.0, 1.0, 1.0]),
        ([0.0, 20e3, 40e3, 60e3], [0.0, 20e3, 20e3, 20e3], [1.0, 1.0, 1.0, 1.0]),
        ([0.0, 2e3, 30e3, 60e3], [2e3, 2e3, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]),
        ([0.0, np.nan, np.nan, 60e3], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]),
    ],
    ids=["it has just begun", "others are not fetched", "decode has no room", "none runs", "gap"],
)
def test_a_full_cache_alone_is_no_long_prompt(
    held: list[float], done: list[float], running: list[float]
) -> None:
    assert unfinished(held, done, running)[1:] == [0.0, 0.0, 0.0]


def test_a_cache_that_also_holds_outputs_does_not_show_a_prompt() -> None:
    counts = unfinished(
        [0.0, 2e3, 30e3, 64e3], [2e3, 2e3, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0], is_prefill=False
    )

    assert counts[1:] == [0.0, 0.0, 0.0]


def drawn_blocks(requests: float) -> tuple[PromptLengths, np.ndarray, np.ndarray]:
    """Lognormal lengths at three engines in 400 blocks: their histogram, sums and numbers."""
    rng, least = np.random.default_rng(1), 500.0 * 2.0 ** np.arange(9)
    count = np.full((3, 400), requests)
    tokens = rng.lognormal(np.log(4000.0), 0.9, size=(*count.shape, int(requests)))
    buckets = np.searchsorted(least, tokens)
    counts = np.stack([(buckets == n).sum(axis=2) for n in range(len(least) + 1)]).astype(float)
    bounds = np.array([0.0, *least])
    middles = np.array([250.0, *least * np.sqrt(2.0)])
    return PromptLengths(bounds, middles, counts, tokens.sum(axis=2)), tokens.sum(axis=2), count


@pytest.mark.parametrize("requests", [4.0, 20.0])
def test_what_mean_lengths_vary_by_chance_from_block_to_block_is_known(requests: float) -> None:
    lengths, tokens, count = drawn_blocks(requests)
    peers = np.zeros(3, dtype=np.intp)

    own, beside = lengths_by_chance(lengths, count, peers)

    assert own == pytest.approx(np.log(tokens / count).std(), rel=0.15)
    assert beside == pytest.approx(relative_length(tokens, count, peers).std(), rel=0.15)
    assert np.array_equal(
        lengths_by_chance(without_buckets(lengths), count, peers), np.zeros((2, 3))
    )


def without_buckets(lengths: PromptLengths) -> PromptLengths:
    nothing = np.empty(0)
    return PromptLengths(nothing, nothing, lengths.counts[:0], lengths.sums)


def test_mean_lengths_that_hardly_varied_so_far_still_vary_by_chance() -> None:
    """Of few prompts in a block, many blocks in a row may happen to be alike."""
    few = [replace(each, requests=0.2, prompt_spread=0.6) for each in PREFILL]
    fleet = read_fleet(WindowMaker(noise=0.0).make(few))
    assert fleet is not None

    changed = engine_changes(fleet).of("prompt_length")

    assert np.ptp(changed.levels) < 0.01
    assert changed.shift.deviation.min() > 0.2
