"""`disagg-node dashboards`: the Grafana dashboards that we ship."""

from __future__ import annotations

from disagg_cluster.cli.lazy import LazyGroup, Row

dashboards = LazyGroup(
    "dashboards",
    {
        "export": Row(
            "disagg_cluster.cli.deploy.dashboards_export:export",
            "Write the dashboards for a Grafana.",
        ),
    },
    help="The Grafana dashboards of disagg-node.",
)
