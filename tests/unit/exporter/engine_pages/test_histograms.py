import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.engine_pages.exposition.layout import SeriesKey
from disagg_exporter.engine_pages.exposition.lines import PageError, Sample, SamplesByName
from disagg_exporter.engine_pages.histograms import (
    BETWEEN_TOKENS_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
    HistogramReader,
)
from disagg_exporter.engine_pages.series import IndexedKey
from disagg_exporter.model import Histogram

OURS = (0.1, 1.0, 10.0)


def histogram(
    found: SamplesByName, name: str, bounds: tuple[float, ...], *, ends_at_longest: bool = False
) -> Histogram | None:
    """Read a histogram of a page of these samples."""
    samples = [(of, sample) for of, samples in found.items() for sample in samples]
    keys: dict[str, list[IndexedKey]] = {}
    for place, (of, sample) in enumerate(samples):
        keys.setdefault(of, []).append((place, SeriesKey(of, sample.labels, place)))
    reading = HistogramReader(name, keys, bounds, ends_at_longest=ends_at_longest)
    return reading.of([sample.value for _, sample in samples])


def page(*points: tuple[str, float], total: float = 1.0, **labels: str) -> SamplesByName:
    buckets = [Sample({"le": bound, **labels}, count) for bound, count in points]
    return {"x_bucket": buckets, "x_sum": [Sample(labels, total)]}


def test_counts_at_common_bounds_are_the_engines_counts() -> None:
    found = page(("0.1", 2), ("0.5", 3), ("1.0", 5), ("10", 7), ("+Inf", 8))

    assert histogram(found, "x", OURS) == Histogram(OURS, (2, 5, 7, 8), 1.0)


def test_an_observation_between_our_bounds_moves_to_a_higher_one() -> None:
    """Of the three below 2 s none is known to be below 1 s: reported too slow, never too fast."""
    found = page(("0.05", 1), ("0.8", 3), ("2.0", 6), ("+Inf", 6))

    assert histogram(found, "x", OURS) == Histogram(OURS, (1, 3, 6, 6), 1.0)


@pytest.mark.parametrize(
    ("theirs", "counts"),
    [
        (("1.0", "2.0", "5.0", "10.0", "20.0"), (5, 6, 9, 9)),
        (("1.0", "2.0", "5.0", "10.0", "20.0", "50.0"), (5, 6, 9, 9)),
        (("1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0"), (5, 6, 8, 9)),
        (("1.0", "5.0", "10.0", "20.0"), (4, 5, 5, 9)),
    ],
)
def test_no_length_is_beyond_the_next_bound_of_an_engine_whose_bounds_end_at_its_longest(
    theirs: tuple[str, ...], counts: tuple[float, ...]
) -> None:
    """Bounds that end at 20 or 50 tell that nothing is beyond 100; those with a gap do not."""
    found = page(*((bound, 2 + place) for place, bound in enumerate(theirs)), ("+Inf", 9))

    read = histogram(found, "x", (10.0, 40.0, 100.0), ends_at_longest=True)

    assert read is not None
    assert read.counts == counts


def test_without_a_bound_nothing_is_known_of_the_longest() -> None:
    read = histogram(page(("+Inf", 9)), "x", (1.0, 10.0), ends_at_longest=True)

    assert read == Histogram((1.0, 10.0), (0, 0, 9), 1.0)


def test_buckets_may_stand_in_any_order() -> None:
    found = page(("+Inf", 8), ("10", 7), ("0.1", 2), ("1.0", 5))

    assert histogram(found, "x", OURS) == Histogram(OURS, (2, 5, 7, 8), 1.0)


def test_ranks_are_summed_each_by_its_own_bounds() -> None:
    found = page(("0.1", 2), ("+Inf", 2), engine="0")
    other = page(("1.0", 5), ("+Inf", 6), engine="1")
    both = {name: [*found[name], *other[name]] for name in found}

    assert histogram(both, "x", OURS) == Histogram(OURS, (2, 7, 7, 8), 2.0)


def test_a_page_without_the_histogram_has_none() -> None:
    assert histogram({}, "x", OURS) is None


@pytest.mark.parametrize(
    "points",
    [
        (("0.1", 2.0), ("1.0", 1.0), ("+Inf", 3.0)),
        (("0.1", math.nan), ("+Inf", 3.0)),
        (("0.1", -1.0), ("+Inf", 3.0)),
        (("0.1", 1.0), ("+Inf", math.inf)),
        (("0.1", 1.0), ("1.0", 3.0)),
        (("0.1", 1.0), ("one", 3.0)),
        (("NaN", 1.0),),
    ],
)
def test_an_invalid_histogram_is_refused(points: tuple[tuple[str, float], ...]) -> None:
    with pytest.raises(PageError):
        histogram(page(*points), "x", OURS)


@pytest.mark.parametrize("totals", [(math.inf, -math.inf), (1.7e308, 1.7e308), (math.nan, 1.0)])
def test_sums_that_are_not_finite_are_refused(totals: tuple[float, float]) -> None:
    sums = [Sample({"engine": str(rank)}, total) for rank, total in enumerate(totals)]
    found = page(("+Inf", 2)) | {"x_sum": sums}

    with pytest.raises(PageError, match=r"^x_sum is not finite$"):
        histogram(found, "x", OURS)


@settings(deadline=None)
@given(
    st.lists(st.floats(0.0001, 5000), max_size=60),
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=30, unique=True),
)
def test_no_quantile_is_underestimated(seconds: list[float], bounds: list[float]) -> None:
    points = [(str(b), float(sum(s <= b for s in seconds))) for b in sorted(bounds)]
    found = page(*points, ("+Inf", float(len(seconds))))

    told = histogram(found, "x", FIRST_TOKEN_BOUNDS_SECONDS)

    assert told is not None
    assert told.counts[-1] == len(seconds)
    for bound, count in zip(told.bounds, told.counts, strict=False):
        assert count <= sum(s <= bound for s in seconds)
        if bound in bounds:
            assert count == sum(s <= bound for s in seconds)


@pytest.mark.parametrize("bounds", [FIRST_TOKEN_BOUNDS_SECONDS, BETWEEN_TOKENS_BOUNDS_SECONDS])
def test_our_bounds_are_few_and_sorted(bounds: tuple[float, ...]) -> None:
    assert len(bounds) + 1 <= 12
    assert list(bounds) == sorted(set(bounds))
