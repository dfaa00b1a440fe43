"""One value of an engine's page: which samples make it up, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disagg_exporter.engine_pages.engines.series import Adapter, Field, Series
from disagg_exporter.engine_pages.exposition.lines import no_count
from disagg_exporter.engine_pages.exposition.series_keys import Head
from disagg_exporter.model import Total

# More than this is no count of anything, and sums of such numbers overflow.
LARGEST = 2.0**63

Placed = tuple[int, Head]
"""A sample by its place among the wanted ones of a page."""

Samples = Mapping[str, Sequence[Placed]]
"""The samples of one kind of engine under their bare names."""


@dataclass(frozen=True, slots=True)
class Term:
    """One way to one value: the sum of some samples, over `parts` that tell the same.

    A `sparse` one without samples is 0. A sum of a ratio that is above 1 is none.
    """

    gives: Field | Total
    name: str
    places: tuple[int, ...]
    scale: float
    counter: bool
    parts: int
    sparse: bool

    def of(self, values: Sequence[float]) -> float | None:
        """Return the value; None where the page does not tell it."""
        if not self.places:
            return 0.0 if self.sparse else None
        told = [values[place] * self.scale for place in self.places]
        for value in told:
            if not 0 <= value <= LARGEST:
                if self.counter:
                    raise no_count(self.name, value)
                return None
        total = math.fsum(told) / self.parts
        return None if self.gives is Field.KV_USAGE_RATIO and total > 1 else total


def term_of(series: Series, adapter: Adapter, found: Samples) -> Term | None:
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
    places = tuple(place for place, _ in placed)
    parts = 1
    if series.gives is Field.KV_USAGE_RATIO:
        parts = len(placed)
    elif isinstance(series.gives, Field) and series.gives.averaged:
        parts = len({head.labels.get("dp_rank") for _, head in placed})
    return Term(series.gives, present[0], places, series.scale, counter, parts, series.sparse)


def _matching(
    series: Series, adapter: Adapter, placed: Iterable[Placed], counter: bool
) -> list[Placed]:
    matching = [
        one
        for one in placed
        if not series.label or one[1].labels.get(series.label) in series.values
    ]
    parts = adapter.breakdown_label
    if parts is None or counter or not any(h.labels.get(parts) == "" for _, h in matching):
        return matching
    return [one for one in matching if one[1].labels.get(parts) == ""]


def _one_rank(placed: list[Placed], adapter: Adapter) -> list[Placed]:
    """Of ranks that tell the same, the lowest."""
    if not adapter.rank_labels:
        return placed
    lowest: dict[tuple[tuple[str, str], ...], tuple[list[int], Placed]] = {}
    for one in placed:
        labels = one[1].labels
        ranks = [_rank(labels.get(label, "0")) for label in adapter.rank_labels]
        rest = tuple(sorted(pair for pair in labels.items() if pair[0] not in adapter.rank_labels))
        if rest not in lowest or ranks < lowest[rest][0]:
            lowest[rest] = (ranks, one)
    return [one for _, one in lowest.values()]


def _rank(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0
