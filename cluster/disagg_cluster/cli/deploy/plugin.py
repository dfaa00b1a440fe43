"""`disagg-node plugin`: the part of us that runs inside engines."""

from __future__ import annotations

from disagg_cluster.cli.lazy import LazyGroup, Row

plugin = LazyGroup(
    "plugin",
    {
        "copy": Row(
            "disagg_cluster.cli.deploy.plugin_copy:copy", "Copy it to where an engine can load it."
        ),
        "env": Row(
            "disagg_cluster.cli.deploy.plugin_env:env",
            "What a hand-run engine needs to tell its steps.",
        ),
    },
    help="The plugin by which an engine tells its steps.",
)
