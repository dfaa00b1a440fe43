"""The dispersion of lengths, from histograms as engines and nodes make them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.learned.length_dispersion import dispersion_of
from disagg_exporter.engine_pages.histograms import LENGTH_BOUNDS_TOKENS

_BOUNDS = [*LENGTH_BOUNDS_TOKENS, math.inf]


def counts_of(lengths: Sequence[float], longest: float = math.inf) -> list[float]:
    """In our buckets, by an engine whose bounds (1, 2, 5, 10, ...) end at its longest prompt."""
    every = (digit * 10.0**power for power in range(7) for digit in (1, 2, 5))
    theirs = [*takewhile(lambda bound: bound <= longest, every)]
    ordered = np.sort(lengths)

    def below(bound: float) -> int:
        if math.isinf(bound):
            return len(ordered)
        known = [each for each in theirs if each <= bound]
        return int(np.searchsorted(ordered, max(known, default=0.0), side="right"))

    return np.diff([0.0, *map(below, _BOUNDS)]).tolist()


def dispersion(lengths: Sequence[float]) -> float:
    return float(np.var(lengths) / np.mean(lengths) ** 2)


def lognormal(middle: float, spread: float, longest: float) -> list[float]:
    found = np.random.default_rng(1).lognormal(math.log(middle), spread, 20_000)
    return np.minimum(np.ceil(found), longest - 1).tolist()


@pytest.mark.parametrize("spread", [0.6, 0.9, 1.2])
@pytest.mark.parametrize(
    ("middle", "longest"),
    [
        (300.0, 4096.0),
        (2000.0, 8192.0),
        (2000.0, 32_768.0),
        (12_000.0, 32_768.0),
        (12_000.0, 131_072.0),
        (60_000.0, 131_072.0),
        (60_000.0, 1_048_576.0),
    ],
)
def test_lengths_beyond_the_bounds_of_an_engine_are_placed_by_their_sum(
    middle: float, spread: float, longest: float
) -> None:
    lengths = lognormal(middle, spread, longest)

    found = dispersion_of(_BOUNDS, counts_of(lengths, longest), sum(lengths))

    assert found == pytest.approx(dispersion(lengths), rel=0.15, abs=0.15)


@pytest.mark.parametrize("longest", [8192.0, 32_768.0, 131_072.0, 262_144.0])
def test_a_few_very_long_prompts_count_as_long_as_they_are(longest: float) -> None:
    lengths = [*lognormal(700.0, 0.6, longest), *[0.9 * longest] * 200]

    found = dispersion_of(_BOUNDS, counts_of(lengths, longest), sum(lengths))

    assert found == pytest.approx(dispersion(lengths), rel=0.2)


@pytest.mark.parametrize("length", [450.0, 1999.0, 7000.0, 30_000.0, 130_000.0])
def test_equal_lengths_hardly_differ(length: float) -> None:
    found = dispersion_of(_BOUNDS, counts_of([length] * 100, 131_072.0), 100 * length)

    assert found == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("spread", [0.6, 1.0])
def test_without_their_sum_lengths_are_log_uniform_in_a_bucket(spread: float) -> None:
    lengths = lognormal(2000.0, spread, math.inf)

    found = dispersion_of(_BOUNDS, counts_of(lengths))

    assert found == pytest.approx(dispersion(lengths), rel=0.35)


def test_an_error_of_rounding_is_no_length() -> None:
    counts = counts_of(lognormal(2000.0, 0.6, 5000.0))
    tokens = sum(lognormal(2000.0, 0.6, 5000.0))

    found = dispersion_of(_BOUNDS, [*counts[:-1], 1e-9], tokens)

    assert found == pytest.approx(dispersion_of(_BOUNDS, [*counts[:-1], 0.0], tokens), rel=1e-3)


@given(
    st.lists(st.floats(1.0, 1e6), max_size=40),
    st.sampled_from([2048.0, 131_072.0, math.inf]),
    st.none() | st.floats(0.0, 1e12),
)
def test_a_dispersion_is_never_negative_whatever_the_sum(
    lengths: list[float], longest: float, tokens: float | None
) -> None:
    found = dispersion_of(_BOUNDS, counts_of(lengths, longest), tokens)

    assert (found is None) == (not lengths)
    assert found is None or 0.0 <= found < math.inf


def test_an_unbounded_bucket_alone_gives_no_dispersion() -> None:
    assert dispersion_of([math.inf], [5.0], 1000.0) is None
