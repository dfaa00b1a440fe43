"""The Capacity dashboard on a real Prometheus that holds what a planner exported for two hours."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from support.backfill import prometheus_with
from support.dashboards import Query, filled, queries
from support.planned_past import past
from support.prometheus_query import query

pytestmark = pytest.mark.prometheus

WITHOUT_DATA = {"Alerts that fire": "all is well", "GPUs for mixed": "the model has two pools"}
CHOICES = {
    "cluster": "east",
    "model": "llama",
    "namespace": "",
    "__rate_interval": "30s",
    "__range": "5m",
}
QUERIES = [each for each in queries("capacity") if each.panel not in WITHOUT_DATA]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that holds it."""
    with prometheus_with(past(int(time.time())), tmp_path_factory.mktemp("capacity")) as running:
        yield running


@pytest.mark.parametrize("asked", QUERIES, ids=lambda each: f"{each.panel}: {each.expr[:40]}")
def test_every_query_finds_data_beside_a_planner(url: str, asked: Query) -> None:
    values = [value for _, value in query(url, filled(asked.expr, CHOICES))]

    assert any(math.isfinite(value) for value in values)


def test_rows_of_a_plan_come_by_role_and_then_by_horizon(url: str) -> None:
    """As text, 15m and 1h would come before 5m."""
    [asked, *_] = (each for each in QUERIES if each.panel == "The plan")

    found = [labels for labels, _ in query(url, filled(asked.expr, CHOICES))]

    found.sort(key=lambda labels: labels["order"])
    ahead = ["now", "5m", "15m", "30m", "1h", "2h", "6h"]
    assert [(each["role"], each["horizon"]) for each in found] == [
        (role, horizon) for role in ("decode", "prefill") for horizon in ahead
    ]


def test_the_load_of_the_picture_is_as_it_was_foreseen(url: str) -> None:
    load, _, median, _ = (each for each in QUERIES if each.panel == "Load of prefill")

    [(_, now)], [(_, foreseen)] = (
        query(url, filled(each.expr, CHOICES)) for each in (load, median)
    )

    assert now == pytest.approx(foreseen, rel=0.05)
