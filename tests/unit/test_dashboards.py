"""The dashboards: as the builders say, on names that exist, and legible."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_exporter.metrics.table import FAMILIES
from support.dashboards import FOLDER, NAMES, ROOT, load, marks, panels, queries

BY_PROMETHEUS = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
PHASE_COLOURS = {
    "prefill": "#3274D9",
    "decode": "#FF780A",
    "idle": "#8E8E8E",
    "unattributed": "#F2CC0C",
}
every_dashboard = pytest.mark.parametrize("name", NAMES)


def recorded_names() -> set[str]:
    """What the recording rules write."""
    return {
        rule["record"]
        for path in (ROOT / "alerts" / "rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "record" in rule
    }


def names_in(expr: str) -> set[str]:
    """The metrics of an expression: each of them is written with a selector."""
    return set(re.findall(r"[A-Za-z_:][\w:]*(?=\{)", expr))


def test_the_committed_dashboards_are_what_the_builders_write(tmp_path: Path) -> None:
    """`make dashboards` writes them anew."""
    subprocess.run(
        [sys.executable, "-m", "grafana.builders", str(tmp_path)], check=True, cwd=ROOT, timeout=60
    )

    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert len(committed) == 4
    assert written == committed


@every_dashboard
def test_every_metric_exists(name: str) -> None:
    known = {family.name for family in FAMILIES} | recorded_names() | BY_PROMETHEUS

    for query in [*queries(name), *marks(name)]:
        assert names_in(query.expr), query
        assert names_in(query.expr) <= known, query
        mentioned = set(re.findall(r"[\w:]*disagg_\w[\w:]*", query.expr))
        assert mentioned <= names_in(query.expr), query


def test_the_cluster_dashboard_never_touches_single_gpus() -> None:
    """The cost of a look must follow the number of nodes at most."""
    touched = {
        metric
        for query in [*queries("cluster"), *marks("cluster")]
        for metric in names_in(query.expr)
    }

    assert touched
    assert [metric for metric in touched if metric.startswith("disagg_gpu_")] == []


def test_the_headline_figures_come_from_recording_rules() -> None:
    headline = [query for query in queries("cluster") if query.panel.startswith(("P:D", "Prefill"))]

    assert len(headline) >= 5
    for query in headline:
        assert names_in(query.expr) <= recorded_names(), query


@every_dashboard
def test_a_dashboard_keeps_its_identity(name: str) -> None:
    """Links and bookmarks of people name the uid."""
    model = load(name)

    assert model["uid"] == f"disagg-{name}"
    assert model["tags"] == ["disagg-node"]
    assert model["refresh"]
    assert model["time"]["from"]
    assert {link["type"]: link["tags"] for link in model["links"]} == {
        "dashboards": ["disagg-node"]
    }


@every_dashboard
def test_every_panel_says_what_it_means_and_in_which_unit(name: str) -> None:
    for panel in panels(load(name)):
        assert len(panel["description"]) > 60, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@every_dashboard
def test_panels_have_numbers_and_titles_of_their_own(name: str) -> None:
    shown = list(panels(load(name)))
    rows = [panel for panel in load(name)["panels"] if panel["type"] == "row"]

    assert len({panel["title"] for panel in shown}) == len(shown)
    assert len({panel["id"] for panel in [*shown, *rows]}) == len(shown) + len(rows)


@every_dashboard
def test_no_panel_lies_on_another_or_beside_the_page(name: str) -> None:
    shown = load(name)["panels"]

    for panel in shown:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
    for one, other in combinations(shown, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[length] and other[start] < one[start] + one[length]
        for start, length in (("x", "w"), ("y", "h"))
    )


@every_dashboard
def test_every_variable_that_is_used_is_offered(name: str) -> None:
    model = load(name)
    offered = {variable["name"] for variable in model["templating"]["list"]}
    asked = [query.expr for query in [*queries(name), *marks(name)]]
    asked += [str(variable["query"]) for variable in model["templating"]["list"]]
    asked += [panel["title"] for panel in model["panels"]]

    used = set(re.findall(r"\$([a-z_]\w*)", " ".join(asked)))
    assert used - {"__rate_interval", "__range"} <= offered
    assert {"datasource", "cluster"} <= offered


@every_dashboard
def test_links_lead_to_dashboards_that_are_there(name: str) -> None:
    uids = {load(each)["uid"] for each in NAMES}

    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert set(re.findall(r"/d/([\w-]+)", text)) <= uids


@every_dashboard
def test_a_phase_has_one_colour_everywhere(name: str) -> None:
    for panel in panels(load(name)):
        for series, colour in fixed_colours(panel):
            if series in PHASE_COLOURS:
                assert colour == PHASE_COLOURS[series], panel["title"]


def fixed_colours(panel: dict[str, Any]) -> list[tuple[str, str]]:
    """The series of a panel that have a colour by their name."""
    return [
        (override["matcher"]["options"], said["value"]["fixedColor"])
        for override in panel["fieldConfig"]["overrides"]
        for said in override["properties"]
        if override["matcher"]["id"] == "byName" and said["id"] == "color"
    ]
