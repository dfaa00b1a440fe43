"""What the rows of the Engines dashboard ask, over the engines chosen."""

from __future__ import annotations

N = 'cluster=~"$cluster", node=~"$node"'
E = f'{N}, engine=~"$engine"'
R = f'{E}, role=~"$role"'
NAMED = "{{engine}} {{node}}"
BY = "sum by (cluster, node, engine)"


def rate(metric: str, matchers: str = R, window: str = "$__rate_interval") -> str:
    """The rate of a counter; windows follow the width of the panel."""
    return f"rate({metric}{{{matchers}}}[{window}])"
