"""Dashboards where much is missing: all engines mixed, and engines that were merely found."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from grafana.pictures.history import openmetrics, rules
from grafana.pictures.recording import Line, lines
from grafana.pictures.situations import SITUATIONS, Situation

from disagg_cluster.prometheus.prometheus_api import PrometheusError
from support.alert_rules import RULE_FILES, groups
from support.backfill import prometheus_with
from support.dashboards import CHOICES, NAMES, filled, load, panels
from support.prometheus_query import query
from support.running_node import wait_for

pytestmark = pytest.mark.prometheus

SEEN_SECONDS = 330.0

NO_SPLIT = {
    ("cluster", "Prefill : decode, utilisation"),
    ("cluster", "Decode leakage, 5 min"),
    ("cluster", "Work of the other phase"),
    ("cluster", "Idle in the prefill pool"),
    ("cluster", "Idle in the decode pool"),
    ("node", "How busy prefill nodes are"),
    ("engines", "Disaggregation queues"),
    ("engines", "KV transfers a second"),
    ("engines", "KV bytes a second"),
    ("engines", "Failed KV transfers a second"),
    ("engines", "Time of a KV transfer"),
    ("engines", "Size of a KV transfer"),
}
NO_STEPS = {
    ("cluster", "Request duration, end to end (E2E)"),
    ("cluster", "Idle outside both pools"),
    ("engines", "Step time over expected"),
    ("engines", "Steps a second by kind"),
    ("engines", "Mean time of a step by kind"),
    ("node", "P:D, 1 minute"),
}
EMPTY = {"all-mixed": NO_SPLIT, "attach-only": NO_STEPS}
"""What is empty in each situation, and says why."""
ANYWHERE = {
    ("engines", "State of each worker"),
    ("engines", "Restarts"),
    ("engines", "SM share on shared GPUs"),
    ("engines", "MFU"),
    ("engines", "MBU"),
    ("engines", "Registered Dynamo workers"),
    ("engines", "Requests a second"),
    ("engines", "Waiting for prefill"),
    ("engines", "Engines held unhealthy"),
    ("engines", "Requests at the engines"),
    ("engines", "Failed requests a second"),
    ("exporter", "Time of a scrape"),
    ("node", "Xid errors of an hour"),
    ("node", "Memory errors of an hour"),
}
MAYBE = {"Alerts that fire", "Imbalance (log2 of prefill over decode)"}
"""By chance, or with more load than is seen here."""
CHOSEN = {situation.name: situation for situation in SITUATIONS if situation.name in EMPTY}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that holds both clusters up to now and evaluates our rules on them."""
    folder = tmp_path_factory.mktemp("situations")
    for situation in CHOSEN.values():
        recorded(situation)
    told = [line for situation in CHOSEN.values() for line in recorded(situation)]
    with prometheus_with("".join(openmetrics(told)), folder, rules=hastened(folder)) as running:
        yield running


def recorded(situation: Situation) -> list[Line]:
    """Its series up to now; the simulation is run once."""
    return list(lines(situation, SEEN_SECONDS, int(time.time())))


def hastened(folder: Path) -> list[Path]:
    """Our recording rules, each second."""
    written = []
    for path in RULE_FILES:
        named = [
            {**group, "interval": "1s", "rules": [r for r in group["rules"] if "record" in r]}
            for group in groups(path)
        ]
        written.append(folder / path.name)
        written[-1].write_text(yaml.safe_dump({"groups": named}), encoding="utf-8")
    return written


@pytest.mark.parametrize("name", EMPTY)
def test_only_expected_panels_are_empty(url: str, name: str) -> None:
    """Empty panels show their `noValue` text, which demo/test_dashboards.py checks."""
    situation = CHOSEN[name]
    choices = {**CHOICES, "cluster": situation.copies[0].cluster, "__rate_interval": "4m"}
    nodes = dict.fromkeys(NAMES, ".*") | {"node": situation.node}
    asked = {
        (dashboard, panel["title"]): [
            filled(each["expr"], {**choices, "node": nodes[dashboard]}) for each in panel["targets"]
        ]
        for dashboard in NAMES
        if dashboard != "capacity"
        for panel in panels(load(dashboard))
        if panel["title"] not in MAYBE
    }

    def empty() -> set[tuple[str, str]]:
        return {panel for panel, exprs in asked.items() if not any(answered(url, e) for e in exprs)}

    with contextlib.suppress(AssertionError):
        wait_for(lambda: empty() <= EMPTY[name] | ANYWHERE, "rules upon rules", 40.0)
    assert empty() == EMPTY[name] | ANYWHERE


def answered(url: str, expr: str) -> bool:
    """Whether it has a value."""
    try:
        return any(not math.isnan(value) for _, value in query(url, expr))
    except PrometheusError:
        return False


def test_pictures_can_evaluate_every_rule_and_alert(tmp_path: Path) -> None:
    """Also an alert that fires at once."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "pictures", "rules": rules()}]}), "utf-8")

    checked = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", file], text=True, capture_output=True
    )

    assert checked.returncode == 0, checked.stderr
