"""What the documented filters send to a central store, against what its dashboards read."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from support.dashboards import ROOT, load, marks, queries

DOCS = ROOT / "docs" / "prometheus.md"
CENTRAL = ("fleet", "cluster", "capacity")
"""The dashboards that are to work there."""


def documented(begin: str) -> Any:
    """Return the content of the documented block that begins so, and has no note beside it."""
    section = DOCS.read_text("utf-8").partition("## Several Prometheus servers")[2]
    [block] = re.findall(rf"```yaml\n({begin}:\n.*?)```", section, re.DOTALL)
    return yaml.safe_load(block)[begin]


def selected(expr: str) -> set[tuple[str, str, str]]:
    """Return metric, name of alert and collector of each selector of an expression."""
    found = set()
    for metric, matchers in re.findall(r"([A-Za-z_:][\w:]*)\{([^}]*)\}", expr):
        collector = re.search(r'collector="([^"]*)"', matchers)
        alert = "DisaggNodeDown" if metric == "ALERTS" else ""
        found.add((metric, alert, collector[1] if collector else ""))
    return found


def read_by(name: str) -> set[tuple[str, str, str]]:
    """Return what a dashboard's panels, variables and shown marks select."""
    model = load(name)
    asked = [each.expr for each in (*queries(name), *marks(name)) if each.shown]
    of_variables = " ".join(str(each["query"]) for each in model["templating"]["list"])
    named = re.findall(r"label_values\(([\w:]+)", of_variables)
    return set().union(*map(selected, asked), {(metric, "", "") for metric in named})


@pytest.mark.parametrize("name", CENTRAL)
def test_remote_write_sends_what_the_dashboards_of_a_central_store_read(name: str) -> None:
    [target] = documented("remote_write")
    [keep] = target["write_relabel_configs"]

    assert keep["source_labels"] == ["__name__", "alertname", "collector"]
    lost = [each for each in read_by(name) if not re.fullmatch(keep["regex"], ";".join(each))]
    assert lost == []


def test_remote_write_does_not_send_other_alerts_or_single_gpus() -> None:
    [target] = documented("remote_write")
    [keep] = target["write_relabel_configs"]

    for other in ("ALERTS;TargetDown;", "disagg_gpu_power_watts;;", "up;;", "disagg_engine_up;;"):
        assert not re.fullmatch(keep["regex"], other)


@pytest.mark.parametrize("name", CENTRAL)
def test_federation_pulls_what_the_dashboards_of_a_central_store_read(name: str) -> None:
    [job] = documented("scrape_configs")
    alerts, collectors, names = {}, {}, []
    for selector in job["params"]["match[]"]:
        if by_name := re.fullmatch(r'\{__name__=~"(.*)"\}', selector):
            names.append(by_name[1])
        elif of_alerts := re.fullmatch(r'ALERTS\{alertname=~"(.*)"\}', selector):
            alerts["ALERTS"] = of_alerts[1]
        elif one := re.fullmatch(r'(\w+)\{collector="(.*)"\}', selector):
            collectors[one[1]] = one[2]

    for metric, alert, collector in read_by(name):
        if alert:
            assert re.fullmatch(alerts[metric], alert)
        elif collector:
            assert collectors[metric] == collector
        else:
            assert any(re.fullmatch(each, metric) for each in names), metric
