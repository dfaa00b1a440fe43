"""The frame of every dashboard: identity, variables, links to the others, marks, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from grafana.builders.panels.queries import DATASOURCE
from grafana_foundation_sdk.builders import dashboard as parts
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

TAG = "disagg-node"
UIDS = {
    "fleet": "disagg-fleet",
    "cluster": "disagg-cluster",
    "node": "disagg-node",
    "engines": "disagg-engines",
    "capacity": "disagg-capacity",
    "exporter": "disagg-exporter",
}
_OF_CLUSTER = "var-cluster=${__data.fields.Cluster}"
_OF_NODE = f"var-node=${{__data.fields.Node}}&{_OF_CLUSTER}"
_ENGINES = f"/d/{UIDS['engines']}?var-engine=${{__data.fields.Engine}}"
_TIME = "${__url_time_range}"
CLUSTER_LINK = f"/d/{UIDS['cluster']}?{_OF_CLUSTER}&{_TIME}"
NODE_LINK = f"/d/{UIDS['node']}?{_OF_NODE}&{_TIME}"
ENGINE_LINK = f"{_ENGINES}&{_OF_NODE}&{_TIME}"
ENGINE_OF_CHOSEN_NODE_LINK = f"{_ENGINES}&${{node:queryparam}}&${{cluster:queryparam}}&{_TIME}"
MODEL_LINK = f"/d/{UIDS['engines']}?var-model=${{__data.fields.Model}}&{_OF_CLUSTER}&{_TIME}"
RUNBOOK_LINK = "${runbooks}/${__data.fields.Alert}.md"
"""Targets of links in tables, which need columns of these headers: an engine's name is unique on
its node, a node's in its cluster."""
Row = tuple[str, Sequence[Any]]


def choice(
    name: str, label: str, query: str, *, several: bool = True, everything: str | None = ".*"
) -> parts.QueryVariable:
    """A variable with the values of a label; `everything` is the pattern that All stands for.

    If `everything` is None, All stands for the listed values, so that other variables narrow it.
    With `several` False, one value can be chosen and there is no All.
    """
    variable = parts.QueryVariable(name).label(label).query(query).datasource(DATASOURCE)
    variable = variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable = variable.sort(models.VariableSort.NATURAL_ASC)
    if several:
        variable = variable.multi(True).include_all(True)
        variable = variable.current(models.VariableOption(text="All", value="$__all"))
        if everything is not None:
            variable = variable.all_value(everything)
    return variable


RECORDED_CLUSTER = choice("cluster", "Cluster", "label_values(cluster:disagg_gpus:sum, cluster)")
"""For dashboards that read what is recorded, also where nodes' own series are not sent."""
CLUSTER = choice("cluster", "Cluster", "label_values(disagg_build_info, cluster)")
RUNBOOKS = parts.ConstantVariable("runbooks").label("Where the runbooks are").value("docs/runbooks")
"""Base of all links to runbooks; change it if they are published elsewhere."""


def board(
    key: str,
    title: str,
    description: str,
    *,
    variables: Sequence[Any],
    rows: Sequence[Row],
    folded: Sequence[Row] = (),
    marks: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """A dashboard made of rows; a row without a title has no header.

    Rows that not every installation has data for are `folded`: at the end, and not queried until
    opened.
    """
    dashboard = (
        parts.Dashboard(title)
        .uid(UIDS[key])
        .description(description)
        .tags([TAG])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_to_the_others())
        .with_variable(
            parts.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    for variable in (*variables, RUNBOOKS):
        dashboard = dashboard.with_variable(variable)
    for header, panels in rows:
        if header:
            dashboard = dashboard.with_row(parts.Row(header))
        for panel in panels:
            dashboard = dashboard.with_panel(panel)
    for header, panels in folded:
        row = parts.Row(header)
        for panel in panels:
            row = row.with_panel(panel)
        dashboard = dashboard.with_row(row)
    model: dict[str, Any] = json.loads(JSONEncoder().encode(dashboard.build()))
    # The SDK supports only annotations of Grafana's own data source.
    model["annotations"] = {"list": list(marks)}
    for number, panel in enumerate(all_panels(model), start=1):
        panel["id"] = number
    return model


def all_panels(model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel and row of a dashboard, including panels in folded rows."""
    for panel in model["panels"]:
        yield panel
        yield from panel.get("panels", ())


def as_text(model: dict[str, Any]) -> str:
    """The JSON as committed, in a stable order so that diffs stay small."""
    return json.dumps(model, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _to_the_others() -> parts.DashboardLink:
    return (
        parts.DashboardLink("Dashboards of disagg-node")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
