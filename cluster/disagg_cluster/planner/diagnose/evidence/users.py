"""Requests as users see them, by model, from the source that observes the most of each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.evidence.features import Feature, Reading
from disagg_cluster.planner.diagnose.evidence.known import known_sum
from disagg_cluster.planner.diagnose.evidence.readings import node_of
from disagg_cluster.planner.diagnose.evidence.series_window import (
    Floats,
    ScrapedSeries,
    SeriesWindow,
    joined,
)
from disagg_cluster.planner.diagnose.evidence.time_grid import SampleBatch

ModelPlace = tuple[str, str, str]
"""Cluster, namespace and name of a model."""

_FIRST_TOKEN = "disagg_request_time_to_first_token_seconds"  # a family, no password
FIRST_TOKENS = f"{_FIRST_TOKEN}_count"
USER_FEATURES: tuple[Feature, ...] = (
    Feature("first_token_seconds", f"{_FIRST_TOKEN}_sum", Reading.GAIN),
    Feature("first_token_count", FIRST_TOKENS, Reading.GAIN),
    Feature("output_tokens", "disagg_request_output_tokens_sum", Reading.GAIN),
    Feature("output_count", "disagg_request_output_tokens_count", Reading.GAIN),
    Feature("arrivals", "disagg_request_arrivals_total", Reading.GAIN),
    Feature("waiting", "disagg_request_waiting_requests", Reading.LEVEL),
)
# Sources that observe a request from its arrival at the front end; engines observe it later.
FRONT_SOURCES = ("frontend", "router")
_ENGINE_SOURCES = ("engine", "pools")


@dataclass(frozen=True, slots=True, eq=False)
class UserReadings:
    """Observations of one model by bin; a name without a source is missing.

    `front_…` are from sources that observe requests from the front end on.
    """

    by_name: Mapping[str, Floats]

    def of(self, name: str) -> Floats | None:
        """One observation; None without a source."""
        return self.by_name.get(name)


def read_users(window: SeriesWindow, batch: SampleBatch) -> dict[ModelPlace, UserReadings]:
    """Read observations of requests, summed over nodes, each from the best source that has it."""
    rows: list[ScrapedSeries] = []
    of: list[tuple[str, ModelPlace, str]] = []
    gauges: dict[tuple[str, ModelPlace, str, str], list[ScrapedSeries]] = {}
    for feature in USER_FEATURES:
        for series in window.of(feature.family):
            labels = series.labels
            cluster, node = node_of(labels)
            place = (cluster, labels.get("engine_namespace", ""), labels.get("model_name", ""))
            source = labels.get("source", "")
            if feature.reading is Reading.LEVEL:
                gauges.setdefault((feature.name, place, source, node), []).append(series)
            else:
                rows.append(series)
                of.append((feature.name, place, source))
    of += [(name, place, source) for name, place, source, _ in gauges]
    shown = batch.levels([joined(several) for several in gauges.values()])
    sums: dict[ModelPlace, dict[tuple[str, str], Floats]] = {}
    for (name, place, source), row in zip(of, (*batch.gains(rows), *shown), strict=True):
        known = sums.setdefault(place, {})
        before = known.get((name, source))
        known[name, source] = row if before is None else known_sum(np.stack([before, row]), axis=0)
    return {place: UserReadings(_best(known)) for place, known in sums.items()}


def _best(known: Mapping[tuple[str, str], Floats]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for name in {name for name, _ in known}:
        for source in (*FRONT_SOURCES, *_ENGINE_SOURCES, ""):
            if (name, source) not in known:
                continue
            values = known[name, source]
            found.setdefault(name, values)
            if source in FRONT_SOURCES:
                found.setdefault(f"front_{name}", values)
    return found
