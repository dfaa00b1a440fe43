"""The Capacity dashboard on a real Prometheus that holds what a planner exported for two hours."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from disagg_cluster.planner.service.planner_state import planner_rows
from disagg_exporter.metrics.table import FAMILIES
from support.backfill import Past, openmetrics, prometheus_with
from support.dashboards import Query, filled, queries
from support.planned import planned_state
from support.prometheus_query import query

pytestmark = pytest.mark.prometheus

HOUR = 3600
LABELS = {family.name: family.labels for family in FAMILIES}
WITHOUT_DATA = {"Alerts that fire": "all is well", "GPUs for mixed": "the model has two pools"}
CHOICES = {"cluster": "east", "model": "llama", "__rate_interval": "30s", "__range": "5m"}
QUERIES = [each for each in queries("capacity") if each.panel not in WITHOUT_DATA]


def past(now: int) -> str:
    """All samples of a planner's page, the same all the time, and the load that it speaks of."""
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
    for phase, level in (("prefill", 55_000), ("decode", 12_000)):
        series.append(
            Past(
                "cluster_model_namespace:disagg_phase_tokens:rate1m",
                whose | {"phase": phase},
                lambda at, level=level: level * (1 + 0.04 * math.sin(at / 500)),  # type: ignore[misc] # a bound default
            )
        )
    return openmetrics(series, range(begun, now + 1, 60))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that holds it."""
    with prometheus_with(past(int(time.time())), tmp_path_factory.mktemp("capacity")) as running:
        yield running


@pytest.mark.parametrize("asked", QUERIES, ids=lambda each: f"{each.panel}: {each.expr[:40]}")
def test_every_query_finds_data_beside_a_planner(url: str, asked: Query) -> None:
    values = [value for _, value in query(url, filled(asked.expr, CHOICES))]

    assert any(math.isfinite(value) for value in values)
