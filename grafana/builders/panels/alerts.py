"""The row of firing alerts."""

from __future__ import annotations

from grafana.builders.panels.annotations import firing
from grafana.builders.panels.board import NODE_LINK, RUNBOOK_LINK, Row
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.tables import Column, rows

SEVERITIES = (
    *(("page", "page", "red"), ("critical", "page", "red")),
    *(("ticket", "ticket", "orange"), ("warning", "ticket", "orange")),
    ("info", "info", "blue"),
)
"""Severities as in the rule files, and as the chart renames them by default."""


def alerts(matchers: str) -> Row:
    """Folded, because it is empty while nothing fires."""
    return "Firing alerts", [
        rows(
            "Alerts that fire",
            "disagg-node alerts that fire now, and what they concern. Click an alert for its "
            "runbook. Good: none. `page` cannot wait, `ticket` can wait until tomorrow, `info` "
            "explains other alerts.",
            [
                Ask(
                    "max by (severity, alertname, cluster, model_name, engine_namespace, role,"
                    f" node, engine, worker, gpu) (ALERTS{{{firing(matchers)}}})"
                )
            ],
            [
                Column("severity", "Severity", width=90, texts=SEVERITIES),
                Column("alertname", "Alert", link=RUNBOOK_LINK),
                Column("cluster", "Cluster"),
                Column("model_name", "Model"),
                Column("engine_namespace", "Namespace"),
                Column("role", "Role"),
                Column("node", "Node", link=NODE_LINK),
                Column("engine", "Engine"),
                Column("worker", "Worker"),
                Column("gpu", "GPU"),
            ],
            sort="Severity",
            none="no alert fires",
        )
    ]
