"""Observations of many engines or GPUs: a matrix for each, by engine or GPU and bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.evidence.features import Feature, Reading
from disagg_cluster.planner.diagnose.evidence.known import known_sum
from disagg_cluster.planner.diagnose.evidence.series_window import (
    Floats,
    ScrapedSeries,
    SeriesWindow,
    joined,
)
from disagg_cluster.planner.diagnose.evidence.time_grid import SampleBatch

Place = tuple[str, str, str]
"""Cluster, node, and the name of an engine or the UUID of a GPU there."""


def node_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Cluster and node of a series; `instance` where the scrape adds no node label."""
    return labels.get("cluster", ""), labels.get("node", "") or labels.get("instance", "")


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Observations of each of `places`, by bin; NaN where unknown.

    Gains are per bin, not per second.
    """

    places: tuple[Place, ...]
    bins: int
    by_name: Mapping[str, Floats]

    def of(self, name: str) -> Floats:
        """One observation: a row for each place."""
        return self.by_name[name]


def read_features(
    window: SeriesWindow,
    features: Sequence[Feature],
    places: Sequence[Place],
    label: str,
    batch: SampleBatch,
) -> Readings:
    """Read observations of `places`; `label` names the engine or GPU in their series.

    An engine whose role changed, or whose daemon's pod was replaced, has several series: counters
    of one place and feature are summed, and gauges joined.
    """
    row_of = {place: row for row, place in enumerate(places)}
    counters: list[ScrapedSeries] = []
    slots: list[int] = []
    gauges: dict[int, list[ScrapedSeries]] = {}
    by_family: dict[str, list[tuple[int, Feature]]] = {}
    for number, feature in enumerate(features):
        by_family.setdefault(feature.family, []).append((number, feature))
    for family, parts in by_family.items():
        reading, key = parts[0][1].reading, parts[0][1].label
        number_of = {value: number for number, part in parts for value in part.values}
        only = parts[0][0]
        for series in window.of(family):
            labels = series.labels
            row = row_of.get((*node_of(labels), labels.get(label, "")))
            found = number_of.get(labels.get(key, "")) if key else only
            if row is None or found is None:
                continue
            slot = found * len(places) + row
            if reading is Reading.LEVEL:
                gauges.setdefault(slot, []).append(series)
            else:
                counters.append(series)
                slots.append(slot)
    whole = np.full((len(features) * len(places), batch.grid.bins), np.nan)
    _add(whole, slots, batch.gains(counters))
    whole[list(gauges)] = batch.levels([joined(several) for several in gauges.values()])
    matrices = whole.reshape(len(features), len(places), batch.grid.bins)
    return Readings(
        tuple(places),
        batch.grid.bins,
        {feature.name: matrices[number] for number, feature in enumerate(features)},
    )


def _add(whole: Floats, slots: Sequence[int], rows: Floats) -> None:
    """Add rows to their slots; of several series the unknown ones count as 0."""
    if len(set(slots)) == len(slots):
        whole[np.array(slots, dtype=np.intp)] = rows
        return
    taken: set[int] = set()
    first: list[int] = []
    more: list[int] = []
    for number, slot in enumerate(slots):
        (more if slot in taken else first).append(number)
        taken.add(slot)
    places = np.array(slots, dtype=np.intp)
    whole[places[first]] = rows[first]
    for number in more:
        slot = slots[number]
        whole[slot] = known_sum(np.stack([whole[slot], rows[number]]), axis=0)
