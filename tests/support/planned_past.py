"""Two hours of an unchanging planner page, and the load it is about."""

from __future__ import annotations

import math
from collections.abc import Mapping

from disagg_cluster.planner.service.planner_state import planner_rows
from disagg_exporter.metrics.table import FAMILIES
from support.backfill import Past, openmetrics
from support.planned import planned_state

HOUR = 3600
_FORECAST = "disagg_forecast_tokens_per_second"
LABELS = {family.name: family.labels for family in FAMILIES}


def past(now: int) -> str:
    """Return all samples of an unchanging planner page, and those of a load as it foresaw it."""
    begun = now - 2 * HOUR

    def of_page(name: str, labels: dict[str, str], value: float) -> Past:
        late = name.endswith("timestamp_seconds")
        shown = dict(cluster="east", **{key: each for key, each in labels.items() if each})
        return Past(name, shown, lambda at: float(at - 60) if late else value)

    rows = planner_rows(planned_state(now), 0)
    series = [
        of_page(name, dict(zip(LABELS[name], labels, strict=True)), value)
        for name, samples in rows.samples.items()
        if name.startswith(("disagg_forecast", "disagg_plan", "disagg_collector"))
        and not name.endswith("_total")
        for labels, value in samples.items()
    ]
    whose = {"cluster": "east", "model_name": "llama"}
    for phase in ("prefill", "decode"):
        level = _foreseen(rows.samples[_FORECAST], phase)
        series.append(
            Past(
                "cluster_model_namespace:disagg_phase_tokens:rate1m",
                whose | {"phase": phase},
                lambda at, level=level: level * (1 + 0.04 * math.sin(at / 500)),  # type: ignore[misc] # a bound default
            )
        )
    return openmetrics(series, range(begun, now + 1, 60))


def _foreseen(samples: Mapping[tuple[str, ...], float], phase: str) -> float:
    """The median that was forecast for a phase an hour ahead."""
    [level] = [value for labels, value in samples.items() if {phase, "1h", "0.5"} <= set(labels)]
    return level
