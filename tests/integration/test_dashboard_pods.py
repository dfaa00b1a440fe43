"""Dashboards while a pod is replaced: the series of the old and of the new one are both there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

import pytest
from grafana.pictures.history import openmetrics
from grafana.pictures.recording import lines
from grafana.pictures.situations import SITUATIONS

from support.backfill import prometheus_with
from support.dashboards import CHOICES, NAMES, Query, filled, marks, queries
from support.planned_past import past
from support.prometheus_query import query

pytestmark = pytest.mark.prometheus

SEEN_SECONDS = 330.0
ALONE, TWICE = "alone", "twice"
OVER_TIME = re.compile(r"\b(rate|increase|changes|resets)\(")
"""What is made of counters; of these only that they have a value is asked."""
OF_TARGETS = re.compile(r"\bup\{")
"""Prometheus ends this series with its target."""


def nodes(now: int) -> str:
    """All that two nodes say."""
    [situation] = [each for each in SITUATIONS if each.name == "attach-only"]
    return "".join(openmetrics(lines(situation, SEEN_SECONDS, now)))


def with_both_pods(text: str) -> str:
    """A cluster with each series as it is, and one in which two pods told what is not recorded."""
    made = []
    for line in text.splitlines():
        if line.startswith("#"):
            made.append(line)
            continue
        named = re.sub(r'cluster="[^"]*"', 'cluster="%s"', line, count=1)
        made.append(named.replace("%s", ALONE))
        recorded = ":" in line.partition("{")[0]
        pods = ("",) if recorded else ('",pod="old', '",pod="new')
        made += [named.replace("%s", f"{TWICE}{pod}") for pod in pods]
    return "\n".join((*made, ""))


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A Prometheus for the dashboards of nodes, and one for that of the planner."""
    now = int(time.time())
    folders = [tmp_path_factory.mktemp(name) for name in ("nodes", "planner")]
    with (
        prometheus_with(with_both_pods(nodes(now)), folders[0]) as of_nodes,
        prometheus_with(with_both_pods(past(now)), folders[1]) as of_planner,
    ):
        yield {name: of_planner if name == "capacity" else of_nodes for name in NAMES}


def answer(url: str, asked: Query, cluster: str) -> dict[tuple[str, ...], float]:
    """The values by their labels, other than the cluster."""
    of_planner = {"model": "llama", "namespace": ""} if asked.dashboard == "capacity" else {}
    node = {"node": "p-0" if asked.dashboard == "node" else ".*"}
    choices = {**CHOICES, **of_planner, **node, "cluster": cluster, "__rate_interval": "4m"}
    return {
        tuple(sorted(f"{key}={value}" for key, value in labels.items() if key not in NOT_SHOWN)): v
        for labels, v in query(url, filled(asked.expr, choices))
    }


NOT_SHOWN = ("cluster", "pod")


@pytest.mark.parametrize("name", NAMES)
def test_a_replaced_pod_changes_no_figure(urls: Mapping[str, str], name: str) -> None:
    wrong = []
    compared = 0
    for asked in [*queries(name), *marks(name)]:
        alone, twice = (answer(urls[name], asked, each) for each in (ALONE, TWICE))
        compared += bool(alone)
        if OVER_TIME.search(asked.expr) or OF_TARGETS.search(asked.expr):
            same = alone.keys() == twice.keys()
        else:
            same = twice == pytest.approx(alone, rel=1e-6, abs=2.0 if "time()" in asked.expr else 0)
        if not same:
            wrong.append((asked.panel, asked.expr, alone, twice))

    assert wrong == []
    assert compared or name == "fleet"
