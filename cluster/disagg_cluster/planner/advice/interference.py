"""Cost of mixed steps over the last day, as the engines of a cluster measured it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from disagg_cluster.planner.capacity.learned.cost_families import CostFamilies, CostKey, engine_id
from disagg_cluster.planner.history.history_queries import SampleSource
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_cluster.planner.separation.verdict import InterferenceSeconds

Interference = Mapping[CostKey, InterferenceSeconds]
_SECONDS = "disagg_engine_interference_seconds_total"
_STEP_SECONDS = "disagg_engine_interference_step_seconds_total"
_BUSY = "steps"


def read_interference(
    prometheus: RangeQueries, families: CostFamilies, cluster: str | None, now_seconds: float
) -> Interference:
    """Interference by kind of engine; kinds that do not export it are absent.

    Raises:
        PrometheusError: No answer in time, or a refusal.
    """
    kinds = dict(families.engines())
    seconds: dict[CostKey, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in (_SECONDS, _STEP_SECONDS):
        expr = f"increase({SampleSource(cluster).of(family)}[1d])"
        for series in prometheus.query_range(expr, now_seconds, now_seconds, 60.0):
            kind = kinds.get(engine_id(series.labels))
            for _, value in series.values[-1:]:
                if kind is not None and math.isfinite(value):
                    seconds[kind][series.labels.get("effect", _BUSY)] += value
    return {
        kind: InterferenceSeconds(by["loss"], by["gain"], by[_BUSY])
        for kind, by in seconds.items()
        if abs(by["loss"] - by["gain"]) < by[_BUSY]
    }
