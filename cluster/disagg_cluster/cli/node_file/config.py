"""`disagg-node config`: what can be done with a node file short of starting it."""

from __future__ import annotations

from disagg_cluster.cli.lazy import LazyGroup, Row

config = LazyGroup(
    "config",
    {
        "check": Row(
            "disagg_cluster.cli.node_file.config_check:check",
            "Check a node file and show its layout.",
        ),
        "schema": Row(
            "disagg_cluster.cli.node_file.config_schema:schema",
            "Print the JSON schema of node files.",
        ),
    },
    help="Look at a node file without starting it.",
)
