"""`disagg-node roles`: what is known of the roles of engines."""

from __future__ import annotations

from disagg_cluster.cli.lazy import LazyGroup, Row

roles = LazyGroup(
    "roles",
    {
        "explain": Row(
            "disagg_cluster.cli.roles_explain:explain",
            "Say what an engine is for, how surely and why.",
        ),
    },
    help="Look at how the roles of engines are found.",
)
