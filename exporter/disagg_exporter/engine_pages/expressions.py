"""One value of an engine's page: which samples make it up, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disagg_exporter.engine_pages.exposition.lines import no_count
from disagg_exporter.engine_pages.exposition.series_keys import SeriesKey
from disagg_exporter.engine_pages.series import Adapter, Field, Series, Value

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

    gives: Value
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
    counter = series.is_counter
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
