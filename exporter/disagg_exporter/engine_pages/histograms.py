"""Reads a histogram of an engine's page into a few bounds of our own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.series import IndexedKey, Samples
from disagg_exporter.model import Histogram

# Those of vLLM, as fine as any engine's: for computation, not for export.
FIRST_TOKEN_READ_BOUNDS_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
FIRST_TOKEN_BOUNDS_SECONDS = (0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0)
# For values combined across nodes: finer where the two parts of a wait are short.
PART_BOUNDS_SECONDS = (0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 40.0)
BETWEEN_TOKENS_BOUNDS_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0, 2.5, 10.0)
DURATION_READ_BOUNDS_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0),
)
DURATION_BOUNDS_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 480.0, 1920.0)
LENGTH_BOUNDS_TOKENS = (
    *(10.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0),
    *(5000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0, 200_000.0),
)
# For single engines: long prompts matter, short ones do not.
PROMPT_BOUNDS_TOKENS = tuple(bound for bound in LENGTH_BOUNDS_TOKENS if bound >= 500.0)


class _Buckets(NamedTuple):
    """The buckets of one label set, lowest first: their indexes, and those of our bounds."""

    indexes: tuple[int, ...]
    picks: tuple[int | None, ...]


class HistogramReader:
    """Reads one histogram from pages of one layout: the sum over label sets, with our bounds.

    Each engine has 18 to 24 bounds of its own. Ours are eleven to thirteen, taken from theirs. At a
    bound that the engine has, the count is exact, and beyond the longest observation that it
    accepts. Otherwise the count at its next bound *below* is used: an observation in between moves
    up into our next bucket, so no quantile is too low.

    Args:
        name: Its bare name; None if the engine has no such histogram.
        found: The samples of the page.
        bounds: Ours.
        ends_at_longest: The engine's bounds 1, 2, 5, 10 ... go up to the longest that it accepts.

    Raises:
        PageError: A bucket has no bound, or there is none for infinity.
    """

    def __init__(
        self,
        name: str | None,
        found: Samples,
        bounds: tuple[float, ...],
        *,
        ends_at_longest: bool = False,
    ) -> None:
        self._name = name
        self._bounds = bounds
        self._ends_at_longest = ends_at_longest
        buckets, sums = found.get(f"{name}_bucket", ()), found.get(f"{name}_sum", ())
        self._sets = [self._rebucketed(points) for points in _by_labels(buckets)]
        self._sums = tuple(index for index, _ in sums)

    def of(self, values: Sequence[float]) -> Histogram | None:
        """Return the histogram, given the values of all samples; None if the page has none.

        Raises:
            PageError: A bucket is not a count, or is less than one below it.
        """
        if not self._sets:
            return None
        counts = [0.0] * (len(self._bounds) + 1)
        for indexes, picks in self._sets:
            points = [values[index] for index in indexes]
            if points != sorted(points) or not all(0 <= count <= 2.0**63 for count in points):
                raise self._no_histogram()
            for position, pick in enumerate(picks):
                if pick is not None:
                    counts[position] += points[pick]
        # Not fsum, which raises on overflow.
        total_seconds = sum((values[index] for index in self._sums), 0.0)
        if not math.isfinite(total_seconds):
            raise PageError(f"{self._name}_sum is not finite", cause="a sum is not finite")
        return Histogram(self._bounds, tuple(counts), max(total_seconds, 0.0))

    def _rebucketed(self, points: Iterable[tuple[float, int]]) -> _Buckets:
        theirs = sorted(points)
        bounds = [bound for bound, _ in theirs]
        # Equal bounds, or NaN, cannot be ordered.
        if bounds[-1] != math.inf or not all(a < b for a, b in pairwise(bounds)):
            raise self._no_histogram()
        never = _next_of_series(bounds[:-1]) if self._ends_at_longest else math.inf
        picks: list[int | None] = []
        for ours in (*self._bounds, math.inf):
            below = len(bounds) if ours >= never else sum(bound <= ours for bound in bounds)
            picks.append(below - 1 if below else None)
        return _Buckets(tuple(index for _, index in theirs), tuple(picks))

    def _no_histogram(self) -> PageError:
        cause = "a histogram is invalid"
        return PageError(f"{self._name}_bucket is not a valid histogram", cause=cause)


def _next_of_series(bounds: Sequence[float]) -> float:
    """The bound after these, if they are 1, 2, 5, 10, 20 and so on; infinity if they are others."""
    series = [digit * 10.0**power for power in range(len(bounds) // 3 + 1) for digit in (1, 2, 5)]
    is_series = bool(bounds) and list(bounds) == series[: len(bounds)]
    return series[len(bounds)] if is_series else math.inf


def _by_labels(buckets: Iterable[IndexedKey]) -> list[list[tuple[float, int]]]:
    """Return the (bound, index) points of each label set."""
    sets: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for index, key in buckets:
        rest = tuple(sorted(pair for pair in key.labels.items() if pair[0] != "le"))
        try:
            bound = float(key.labels.get("le", ""))
        except ValueError:
            raise PageError("a bucket has no bound") from None
        sets.setdefault(rest, []).append((bound, index))
    return list(sets.values())
