"""Histograms of engines, told anew with few bounds of our own.

Engines have 18 to 24 bounds, each others. Ours are eleven, taken from theirs. Where one of ours is
one of theirs the count is exact. Where it is not, the count at the next bound *below* is taken: an
observation in between moves up into our next bucket. So a quantile is never told too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.model import Histogram

FIRST_TOKEN_BOUNDS_SECONDS = (0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0)
BETWEEN_TOKENS_BOUNDS_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0, 2.5, 10.0)

Placed = Iterable[tuple[int, Mapping[str, str]]]
"""Samples by their places among all of a page, and their labels."""


class _Buckets(NamedTuple):
    """The buckets of one label set, the lowest first: where they are, and which are our bounds'."""

    places: tuple[int, ...]
    picks: tuple[int | None, ...]


class HistogramReading:
    """One histogram of a page's layout, all label sets added up.

    Args:
        name: For the message.
        buckets, sums: Its samples.
        bounds_seconds: Ours.

    Raises:
        PageError: A bucket is without its bound, or there is none for all.
    """

    def __init__(
        self, name: str, buckets: Placed, sums: Placed, bounds_seconds: tuple[float, ...]
    ) -> None:
        self._name = name
        self._bounds_seconds = bounds_seconds
        self._sets = [self._told_anew(points) for points in _by_labels(buckets)]
        self._sums = tuple(place for place, _ in sums)

    def of(self, values: Sequence[float]) -> Histogram | None:
        """Return the histogram, given the values of all samples; None where the page has none.

        Raises:
            PageError: A bucket is no count, or less than one below it.
        """
        if not self._sets:
            return None
        counts = [0.0] * (len(self._bounds_seconds) + 1)
        for places, picks in self._sets:
            points = [values[place] for place in places]
            if points != sorted(points) or not all(0 <= count <= 2.0**63 for count in points):
                raise self._no_histogram()
            for position, pick in enumerate(picks):
                if pick is not None:
                    counts[position] += points[pick]
        # Not fsum, which fails where a page tells of too much.
        total_seconds = sum((values[place] for place in self._sums), 0.0)
        if not math.isfinite(total_seconds):
            raise PageError(f"{self._name}_sum is no sum", cause="a sum is no sum")
        return Histogram(self._bounds_seconds, tuple(counts), max(total_seconds, 0.0))

    def _told_anew(self, points: Iterable[tuple[float, int]]) -> _Buckets:
        theirs = sorted(points)
        bounds = [bound for bound, _ in theirs]
        # Two of the same bound, or one of NaN, have no order.
        if bounds[-1] != math.inf or not all(a < b for a, b in pairwise(bounds)):
            raise self._no_histogram()
        picks: list[int | None] = []
        for ours in (*self._bounds_seconds, math.inf):
            below = sum(bound <= ours for bound in bounds)
            picks.append(below - 1 if below else None)
        return _Buckets(tuple(place for _, place in theirs), tuple(picks))

    def _no_histogram(self) -> PageError:
        cause = "a histogram is none"
        return PageError(f"{self._name}_bucket is no histogram", cause=cause)


def _by_labels(buckets: Placed) -> list[list[tuple[float, int]]]:
    """The (bound, place) points of each label set."""
    sets: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for place, labels in buckets:
        rest = tuple(sorted(pair for pair in labels.items() if pair[0] != "le"))
        try:
            bound = float(labels.get("le", ""))
        except ValueError:
            raise PageError("a bucket has no bound") from None
        sets.setdefault(rest, []).append((bound, place))
    return list(sets.values())
