"""`disagg-node rules`: the recording rules and alerts that we ship."""

from __future__ import annotations

from disagg_cluster.cli.lazy import LazyGroup, Row

rules = LazyGroup(
    "rules",
    {
        "export": Row(
            "disagg_cluster.cli.deploy.rules_export:export", "Write rules and alerts into a folder."
        ),
    },
    help="Recording rules and alerts for Prometheus, and an example for Alertmanager.",
)
