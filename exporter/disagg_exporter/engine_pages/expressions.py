"""One value or histogram of an engine's page: which samples make it up, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from disagg_exporter.engine_pages.exposition.lines import PageError, no_count
from disagg_exporter.engine_pages.exposition.series_keys import SeriesKey
from disagg_exporter.engine_pages.series import Adapter, Field, Series
from disagg_exporter.model import Histogram, Total

# More than this is no count of anything, and sums of such numbers overflow.
LARGEST = 2.0**63

IndexedKey = tuple[int, SeriesKey]
"""A sample by its index among the wanted ones of a page."""

Samples = Mapping[str, Sequence[IndexedKey]]
"""The samples of one kind of engine under their bare names."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One way to one value: the sum of some samples, over `parts` that report the same.

    A `sparse` one without samples is 0. A sum of a ratio that is above 1 is none.
    """

    gives: Field | Total
    name: str
    indexes: tuple[int, ...]
    scale: float
    counter: bool
    parts: int
    sparse: bool

    def of(self, values: Sequence[float]) -> float | None:
        """Return the value; None where the page lacks it."""
        if not self.indexes:
            return 0.0 if self.sparse else None
        terms = [values[index] * self.scale for index in self.indexes]
        for value in terms:
            if not 0 <= value <= LARGEST:
                if self.counter:
                    raise no_count(self.name, value)
                return None
        total = math.fsum(terms) / self.parts
        return None if self.gives is Field.KV_USAGE_RATIO and total > 1 else total


def expression_of(series: Series, adapter: Adapter, found: Samples) -> Expression | None:
    """Return how a page's samples give a series' value; None where it has none of its names."""
    present = [name for name in series.names if name in found]
    if not present:
        return None
    counter = isinstance(series.gives, Total) or series.gives.counter
    placed = [
        one
        for name in present
        for one in _one_rank(_matching(series, adapter, found[name], counter), adapter)
    ]
    indexes = tuple(index for index, _ in placed)
    parts = 1
    if series.gives is Field.KV_USAGE_RATIO:
        parts = len(placed)
    elif isinstance(series.gives, Field) and series.gives.averaged:
        parts = len({key.labels.get("dp_rank") for _, key in placed})
    scale, sparse = series.scale, series.sparse
    return Expression(series.gives, present[0], indexes, scale, counter, parts, sparse)


def _matching(
    series: Series, adapter: Adapter, placed: Iterable[IndexedKey], counter: bool
) -> list[IndexedKey]:
    matching = [
        one
        for one in placed
        if not series.label or one[1].labels.get(series.label) in series.values
    ]
    parts = adapter.breakdown_label
    if parts is None or counter or not any(key.labels.get(parts) == "" for _, key in matching):
        return matching
    return [one for one in matching if one[1].labels.get(parts) == ""]


def _one_rank(placed: list[IndexedKey], adapter: Adapter) -> list[IndexedKey]:
    """Of ranks that report the same, the lowest."""
    if not adapter.rank_labels:
        return placed
    lowest: dict[tuple[tuple[str, str], ...], tuple[list[int], IndexedKey]] = {}
    for one in placed:
        labels = one[1].labels
        ranks = [_rank(labels.get(label, "0")) for label in adapter.rank_labels]
        rest = tuple(sorted(pair for pair in labels.items() if pair[0] not in adapter.rank_labels))
        if rest not in lowest or ranks < lowest[rest][0]:
            lowest[rest] = (ranks, one)
    return [one for _, one in lowest.values()]


def _rank(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0


FIRST_TOKEN_BOUNDS_SECONDS = (0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0)
BETWEEN_TOKENS_BOUNDS_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0, 2.5, 10.0)


class _Buckets(NamedTuple):
    """The buckets of one label set, the lowest first: where they are, and which are our bounds'."""

    indexes: tuple[int, ...]
    picks: tuple[int | None, ...]


class HistogramReader:
    """One histogram of a page's layout, all label sets added up, with few bounds of our own.

    Engines have 18 to 24 bounds, each others. Ours are eleven, taken from theirs. Where one of ours
    is one of theirs the count is exact. Where it is not, the count at the next bound *below* is
    taken: an observation in between moves up into our next bucket, so no quantile is too low.

    Args:
        name: Its bare name; None where the engine has none such.
        found: The samples of the page.
        bounds_seconds: Ours.

    Raises:
        PageError: A bucket is without its bound, or there is none for all.
    """

    def __init__(self, name: str | None, found: Samples, bounds_seconds: tuple[float, ...]) -> None:
        self._name = name
        self._bounds_seconds = bounds_seconds
        buckets, sums = found.get(f"{name}_bucket", ()), found.get(f"{name}_sum", ())
        self._sets = [self._rebucketed(points) for points in _by_labels(buckets)]
        self._sums = tuple(index for index, _ in sums)

    def of(self, values: Sequence[float]) -> Histogram | None:
        """Return the histogram, given the values of all samples; None where the page has none.

        Raises:
            PageError: A bucket is no count, or less than one below it.
        """
        if not self._sets:
            return None
        counts = [0.0] * (len(self._bounds_seconds) + 1)
        for indexes, picks in self._sets:
            points = [values[index] for index in indexes]
            if points != sorted(points) or not all(0 <= count <= 2.0**63 for count in points):
                raise self._no_histogram()
            for position, pick in enumerate(picks):
                if pick is not None:
                    counts[position] += points[pick]
        # Not fsum, which fails where a page reports too much.
        total_seconds = sum((values[index] for index in self._sums), 0.0)
        if not math.isfinite(total_seconds):
            raise PageError(f"{self._name}_sum is no sum", cause="a sum is no sum")
        return Histogram(self._bounds_seconds, tuple(counts), max(total_seconds, 0.0))

    def _rebucketed(self, points: Iterable[tuple[float, int]]) -> _Buckets:
        theirs = sorted(points)
        bounds = [bound for bound, _ in theirs]
        # Two of the same bound, or one of NaN, have no order.
        if bounds[-1] != math.inf or not all(a < b for a, b in pairwise(bounds)):
            raise self._no_histogram()
        picks: list[int | None] = []
        for ours in (*self._bounds_seconds, math.inf):
            below = sum(bound <= ours for bound in bounds)
            picks.append(below - 1 if below else None)
        return _Buckets(tuple(index for _, index in theirs), tuple(picks))

    def _no_histogram(self) -> PageError:
        cause = "a histogram is none"
        return PageError(f"{self._name}_bucket is no histogram", cause=cause)


def _by_labels(buckets: Iterable[IndexedKey]) -> list[list[tuple[float, int]]]:
    """The (bound, index) points of each label set."""
    sets: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for index, key in buckets:
        rest = tuple(sorted(pair for pair in key.labels.items() if pair[0] != "le"))
        try:
            bound = float(key.labels.get("le", ""))
        except ValueError:
            raise PageError("a bucket has no bound") from None
        sets.setdefault(rest, []).append((bound, index))
    return list(sets.values())
