"""The dashboards: as built, on existing names, and legible."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana.builders.panels import limits
from grafana.builders.panels.palette import VERDICTS

from disagg_cluster.planner.plan.gpu_plan import SHORT_QUANTILE
from disagg_exporter.metrics.family import MetricType
from disagg_exporter.metrics.planner_families import PLANNER_FAMILIES
from disagg_exporter.metrics.table import FAMILIES
from support.dashboards import FOLDER, NAMES, ROOT, links, load, marks, panels, queries, rules

BY_PROMETHEUS = {"ALERTS", "up", "scrape_duration_seconds", "scrape_samples_scraped"}
PHASE_COLOURS = {
    "prefill": "#3274D9",
    "decode": "#FF780A",
    "idle": "#8E8E8E",
    "unattributed": "#F2CC0C",
}
every_dashboard = pytest.mark.parametrize("name", NAMES)


def recorded_names() -> set[str]:
    """Return the records of the recording rules."""
    return {rule["record"] for rule in rules() if "record" in rule}


def exported_names() -> set[str]:
    """Return the metrics on the exporter's page; of a histogram, its three kinds of series."""
    histograms = [family.name for family in FAMILIES if family.kind is MetricType.HISTOGRAM]
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return {family.name for family in FAMILIES if family.name not in histograms} | parts


def names_in(expr: str) -> set[str]:
    """Return the metrics of an expression, each of which has a selector."""
    return set(re.findall(r"[A-Za-z_:][\w:]*(?=\{)", expr))


def test_the_committed_dashboards_are_what_the_builders_write(tmp_path: Path) -> None:
    """`make dashboards` rewrites them."""
    subprocess.run(
        [sys.executable, "-m", "grafana.builders", str(tmp_path)], check=True, cwd=ROOT, timeout=60
    )

    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert len(committed) == 6
    assert written == committed


def test_pictures_are_shown_and_small() -> None:
    """`make pictures` redraws them."""
    folder = ROOT / "docs" / "dashboards"
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)

    drawn = sorted(folder.glob("*.png"))
    assert [each.name for each in drawn if f"dashboards/{each.name}" not in text] == []
    assert sum(each.stat().st_size for each in drawn) < 6e6


@every_dashboard
def test_every_metric_exists(name: str) -> None:
    known = exported_names() | recorded_names() | BY_PROMETHEUS

    for query in [*queries(name), *marks(name)]:
        assert names_in(query.expr), query
        assert names_in(query.expr) <= known, query
        mentioned = set(re.findall(r"[\w:]*disagg_\w[\w:]*", query.expr))
        assert mentioned <= names_in(query.expr), query


@every_dashboard
def test_every_label_that_a_query_matches_exists_on_its_metric(name: str) -> None:
    """A matcher of another label finds nothing as soon as a value is chosen."""
    labels = labels_by_metric()

    for query in [*queries(name), *marks(name)]:
        for metric, matched in matchers_in(query.expr):
            if metric in labels:
                assert matched <= labels[metric] | OF_TARGETS, (query.panel, metric)


@every_dashboard
def test_marks_look_back_as_far_as_the_step_of_their_query(name: str) -> None:
    """Grafana asks a hundred times over the time shown: a fixed window sees part of a day."""
    for mark in marks(name):
        assert not re.search(r"\[\d+\w\]|time\(\) - \d", mark.expr), mark
        window = "$__rate_interval" in mark.expr
        assert window or names_in(mark.expr) == {"ALERTS"}, mark


@every_dashboard
def test_quantiles_are_not_added_over_clusters_or_namespaces(name: str) -> None:
    """A sum of 95 % quantiles is not the 95 % quantile of the sum."""
    own = {"cluster", "engine_namespace", "model_name"}

    for query in queries(name):
        for matchers in re.findall(r"\{([^}]*quantile=[^}]*)\}", query.expr):
            chosen = set(re.findall(r'(\w+)="', matchers))
            kept = re.match(r"\w+ by \(([^)]*)\)", query.expr)
            assert {*chosen, *(kept[1].split(", ") if kept else ())} >= own, query


@every_dashboard
def test_a_rate_over_a_minute_falls_back_to_five(name: str) -> None:
    """Scraped once a minute, a series has a single sample in most windows of a minute."""
    for query in queries(name):
        for minute in re.findall(r"rate\([^()]*\[(?:\d\d?s|1m)\]\)", query.expr):
            assert f"{minute} or {minute.replace('[1m]', '[5m]')}" in query.expr, query


OF_TARGETS = {"cluster", "node", "job"}
"""Labels that the scrape adds and that queries may use."""


def labels_by_metric() -> dict[str, set[str]]:
    """Return the labels of each series of the exporter's page."""
    labels = {family.name: set(family.labels) for family in FAMILIES}
    for family in FAMILIES:
        if family.kind is MetricType.HISTOGRAM:
            parts = {f"{family.name}_{part}": set(family.labels) for part in ("sum", "count")}
            labels |= {**parts, f"{family.name}_bucket": {*family.labels, "le"}}
    return labels


def matchers_in(expr: str) -> list[tuple[str, set[str]]]:
    """Return the metric of each selector of an expression, and the labels that it matches."""
    return [
        (metric, set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers)))
        for metric, matchers in re.findall(r"([A-Za-z_:][\w:]*)\{([^}]*)\}", expr)
    ]


def test_the_cluster_dashboard_queries_only_recorded_series_and_node_sums() -> None:
    """The cost of a view may grow with the number of nodes, but not with GPUs or engines."""
    shown = [mark for mark in marks("cluster") if mark.shown]
    touched = {metric for query in [*queries("cluster"), *shown] for metric in names_in(query.expr)}

    assert len(touched) > 20
    of_planner = {family.name for family in PLANNER_FAMILIES}
    dear = touched - recorded_names() - of_planner - {"ALERTS"}
    by_node = ("disagg_node_", "disagg_request_")
    assert [metric for metric in dear if not metric.startswith(by_node)] == []


def test_exactly_the_verdicts_of_the_rules_have_a_colour() -> None:
    told = {rule["labels"]["verdict"] for rule in rules() if "verdict" in rule.get("labels", {})}

    assert set(VERDICTS) == told


def test_node_heat_maps_show_the_top_and_bottom_eight_nodes() -> None:
    """Nodes are ranked once for the whole time range, so that they do not change within it."""
    heat = [panel for panel in panels(load("node")) if panel["type"] == "status-history"]

    assert len(heat) == 2
    for panel in heat:
        [target] = panel["targets"]
        ranked = re.findall(r"(topk|bottomk)\((\d+), [^}]*} @ end\(\)\)", target["expr"])
        assert ranked == [("topk", "8"), ("bottomk", "8")]
        assert names_in(target["expr"]) <= recorded_names()
        shown = panel["fieldConfig"]["defaults"]
        assert shown["unit"] == "percentunit"
        shades = [step["value"] for step in shown["thresholds"]["steps"][1:]]
        assert shades[0] > 0
        assert shades == sorted(shades)
        assert shades[-1] < 1


def test_the_headline_figures_come_from_recording_rules() -> None:
    headline = [query for query in queries("cluster") if query.panel.startswith(("P:D", "Prefill"))]

    assert len(headline) >= 5
    for query in headline:
        assert names_in(query.expr) <= recorded_names(), query


@every_dashboard
def test_a_dashboard_keeps_its_identity(name: str) -> None:
    """Links and bookmarks use the uid."""
    model = load(name)

    assert model["uid"] == f"disagg-{name}"
    assert model["tags"] == ["disagg-node"]
    assert model["refresh"]
    assert model["time"]["from"]
    assert {link["type"]: link["tags"] for link in model["links"]} == {
        "dashboards": ["disagg-node"]
    }


@every_dashboard
def test_every_panel_has_a_description_and_a_unit(name: str) -> None:
    for panel in panels(load(name)):
        assert len(panel["description"]) > 60, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@every_dashboard
def test_a_panel_that_may_be_empty_has_a_no_value_text(name: str) -> None:
    """By Grafana's `noValue`, which replaces an empty drawing; a table's cells show a dash."""
    for panel in panels(load(name)):
        shown = panel["fieldConfig"]
        if not all(target["expr"].endswith("or vector(0)") for target in panel["targets"]):
            assert len(shown["defaults"]["noValue"]) >= len("no plan"), panel["title"]
        if panel["type"] == "table":
            cells = {each["matcher"]["options"]: each["properties"] for each in shown["overrides"]}
            assert {"id": "noValue", "value": "-"} in cells[".*"], panel["title"]


@every_dashboard
def test_rows_of_a_table_join_by_labels_that_all_of_its_queries_have(name: str) -> None:
    """Grafana merges rows that agree in all shared labels; without a key they never merge."""
    tables = [panel for panel in panels(load(name)) if panel["type"] == "table"]

    for panel in tables:
        columns = [labels_of(target["expr"]) for target in panel["targets"]]
        key = set.intersection(*columns)
        assert key in columns, (panel["title"], columns)
        shown = panel["transformations"][-1]["options"]["includeByName"]
        labels = {column for column in shown if not column.startswith("Value")}
        assert labels <= set.union(*columns), panel["title"]


def labels_of(expr: str) -> set[str]:
    """Return the labels of a query's result: of its first aggregation that makes new series."""
    found = re.search(r"\b(?:sum|min|max|count|avg|quantile) (?:by )?\(([a-z_, ]+)\)", expr)
    assert found is not None, expr
    added = re.findall(r'^label_replace\(.*"(\w+)", "[^"]*", "[^"]*", "[^"]*"\)$', expr)
    return {*re.split(r",\s*", found[1]), *added}


def test_panels_of_single_engines_show_at_most_twelve() -> None:
    """Engines are ranked once for the whole time range, so that they do not change within it."""
    for panel in panels(load("engines")):
        for target in panel["targets"]:
            single = re.search(r"{{(engine|worker)}}", target["legendFormat"])
            if panel["type"] != "table" and single and panel["title"] not in SELDOM:
                expr = target["expr"]
                ranked = re.search(r"(?:top|bottom)k(?: by \(role\))? ?\((\d+), (.*)", expr)
                assert ranked is not None, panel["title"]
                assert int(ranked[1]) <= 12
                assert "@ end()" in ranked[2], panel["title"]


SELDOM = ("SM share on shared GPUs", "Registered Dynamo workers", "Failed requests a second")
"""Series of few engines, if any."""


@every_dashboard
def test_no_series_has_the_colour_of_a_phase_by_chance(name: str) -> None:
    """Grafana's palette contains our yellow, blue and orange."""
    for panel in panels(load(name)):
        if panel["type"] == "timeseries":
            shown = panel["fieldConfig"]
            chosen = shown["defaults"].get("color", {}).get("mode")
            assert chosen == "shades" or shown["overrides"], panel["title"]


@pytest.mark.parametrize(
    ("bound", "alert"),
    [
        (limits.FULL, "DisaggPoolAtCapacity"),
        (limits.FILLING, "DisaggPoolFilling"),
        (limits.IMBALANCE_LOG2, "DisaggImbalance"),
        (limits.FOREIGN_SHARE, "DisaggDecodeLeakage"),
        (limits.WATERMARK_SECONDS, "DisaggWatermarkLag"),
        (limits.RESIDUAL_RATIO, "DisaggAttributionUncertain"),
        (limits.FORECAST_ERROR, "DisaggPlanErrorLarge"),
        (limits.UNATTRIBUTED_SHARE, "DisaggGpuUnattributed"),
        (limits.TRANSFER_SECONDS, "DisaggKvTransferSlow"),
    ],
)
def test_a_panel_draws_the_bound_at_which_its_alert_fires(bound: float, alert: str) -> None:
    [rule] = [rule for rule in rules() if rule.get("alert") == alert]

    compared = re.findall(r"(?:>=?|<=?)\s+(-?[\d.]+)\b", rule["expr"])
    assert bound in {float(each) for each in compared}


def test_alerts_and_dashboards_call_short_what_a_plan_calls_short() -> None:
    asked = [rule["expr"] for rule in rules()]
    asked += [query.expr for name in NAMES for query in queries(name)]
    short = [each for each in asked if "disagg_plan_shortfall_gpus" in each]

    assert len(short) > 3
    assert all(f'quantile="{SHORT_QUANTILE:g}"' in each for each in short)


def test_panels_and_alerts_use_the_same_latency_bounds() -> None:
    expr = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}

    for what, bound in (
        ("ttft_slow_requests", limits.TTFT_SECONDS),
        ("itl_slow_tokens", limits.ITL_SECONDS),
    ):
        slow = expr[f"cluster_model_namespace:disagg_{what}:rate5m"]
        assert f'le="{bound:g}"' in slow
    burning = [rule["expr"] for rule in rules() if "Burn" in rule.get("alert", "")]
    assert len(burning) == 4
    assert all(f"/ {limits.SLOW_SHARE:g} >" in each for each in burning)


@every_dashboard
def test_panel_ids_and_titles_are_unique(name: str) -> None:
    shown = list(panels(load(name)))
    rows = [panel for panel in load(name)["panels"] if panel["type"] == "row"]

    assert len({panel["title"] for panel in shown}) == len(shown)
    assert len({panel["id"] for panel in [*shown, *rows]}) == len(shown) + len(rows)


@every_dashboard
def test_no_panel_overlaps_another_or_exceeds_the_grid(name: str) -> None:
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
def test_every_variable_used_is_defined(name: str) -> None:
    model = load(name)
    offered = {variable["name"] for variable in model["templating"]["list"]}
    asked = [query.expr for query in [*queries(name), *marks(name)]]
    asked += [str(variable["query"]) for variable in model["templating"]["list"]]
    asked += [panel["title"] for panel in model["panels"]]

    used = set(re.findall(r"\$([a-z_]\w*)", " ".join(asked)))
    assert used - {"__rate_interval", "__rate_interval_ms", "__range"} <= offered
    assert {"datasource", "cluster"} <= offered


@every_dashboard
def test_links_lead_to_existing_dashboards(name: str) -> None:
    uids = {load(each)["uid"] for each in NAMES}

    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert set(re.findall(r"/d/([\w-]+)", text)) <= uids


@every_dashboard
def test_a_link_to_a_node_or_engine_says_which_cluster_and_node_it_is_of(name: str) -> None:
    """Names of nodes are unique in their cluster, those of engines on their node."""
    for url in links(name):
        told = set(re.findall(r"[?&](var-\w+)=|\$\{(\w+):queryparam\}", url))
        chosen = {one or f"var-{other}" for one, other in told}
        for board, needed in (
            ("disagg-node", {"var-node", "var-cluster"}),
            ("disagg-engines", {"var-cluster"}),
        ):
            if f"/d/{board}?" in url:
                assert chosen >= needed | ({"var-node"} if "var-engine" in chosen else set()), url


@every_dashboard
def test_a_link_takes_its_values_from_columns_of_its_table(name: str) -> None:
    for panel in panels(load(name)):
        if panel["type"] == "table":
            shown = panel["transformations"][-1]["options"]
            columns = {shown["renameByName"][field] for field in shown["includeByName"]}
            said = str(panel["fieldConfig"]["overrides"])
            assert set(re.findall(r"__data\.fields\.(\w+)", said)) <= columns, panel["title"]


@every_dashboard
def test_runbook_links_use_one_base_variable(name: str) -> None:
    """The default `docs/runbooks` only exists here, so users must be able to set it."""
    [base] = [each for each in load(name)["templating"]["list"] if each["name"] == "runbooks"]

    assert (base["type"], base["query"]) == ("constant", "docs/runbooks")
    for url in links(name):
        if "runbooks" in url:
            assert url == "${runbooks}/${__data.fields.Alert}.md" or runbook(url).is_file(), url


def runbook(url: str) -> Path:
    return ROOT / url.replace("${runbooks}", "docs/runbooks")


def test_every_alert_has_a_panel_that_leads_to_its_runbook() -> None:
    linked = {runbook(url).stem for name in NAMES for url in links(name) if "runbooks" in url}

    assert linked >= {rule["alert"] for rule in rules() if "alert" in rule}


@every_dashboard
def test_events_are_marked_on_the_time_axis(name: str) -> None:
    marked = {mark.panel for mark in marks(name)}

    moves = dict.fromkeys(("fleet", "cluster", "capacity"), "Pool sizes change")
    moves["exporter"] = "Daemon starts"
    assert marked >= {"Alerts", moves.get(name, "Role changes")}
    assert "Worker restarts" in marked or name == "exporter"


@every_dashboard
def test_a_phase_has_one_colour_everywhere(name: str) -> None:
    for panel in panels(load(name)):
        for series, colour in fixed_colours(panel):
            if series in PHASE_COLOURS:
                assert colour == PHASE_COLOURS[series], panel["title"]


def fixed_colours(panel: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the series of a panel that have a colour by name."""
    return [
        (override["matcher"]["options"], said["value"]["fixedColor"])
        for override in panel["fieldConfig"]["overrides"]
        for said in override["properties"]
        if override["matcher"]["id"] == "byName" and said["id"] == "color"
        if "fixedColor" in said["value"]
    ]


@every_dashboard
def test_thousands_keep_a_digit_after_the_point(name: str) -> None:
    """Without one an axis from 0 to 2.5 K reads 3 K, 2 K, 2 K, and quantiles look alike."""
    for panel in panels(load(name)):
        defaults = panel["fieldConfig"]["defaults"]
        shown = [(defaults.get("unit"), defaults.get("decimals"), "tokens" in everything(panel))]
        for override in panel["fieldConfig"]["overrides"]:
            said = {each["id"]: each["value"] for each in override["properties"]}
            shown.append((said.get("unit"), said.get("decimals"), "tokens" in everything(panel)))
        assert ("short", 0, True) not in shown, panel["title"]


def everything(panel: dict[str, Any]) -> str:
    """Return all queries of a panel."""
    return " ".join(target["expr"] for target in panel["targets"])
