"""What the rows of the Engines dashboard ask, over the engines chosen."""

from __future__ import annotations

from grafana.builders.panels.queries import Ask

N = 'cluster=~"$cluster", node=~"$node"'
E = f'{N}, engine=~"$engine"'
R = f'{E}, role=~"$role"'
BY = "sum by (cluster, node, engine)"
BY_ROLE = "sum by (cluster, node, engine, role)"
TOP = 3
"""So many engines of each role have a line of their own: more are not legible."""
OTHERS = ".*, others$"
_ENGINE = "on (cluster, node, engine, role)"
_WINDOW, _SHOWN = "[$__rate_interval]", "[$__range] @ end()"


def rate(metric: str, matchers: str = R, window: str = "$__rate_interval") -> str:
    """The rate of a counter; windows follow the width of the panel."""
    return f"rate({metric}{{{matchers}}}[{window}])"


def top(expr: str, over_time: str = "") -> list[Ask]:
    """The engines of each role that are highest over all of the time shown, beside the others.

    `expr` has a value for each engine and role, from rates over `$__rate_interval`; or from a
    gauge, and then `over_time` is its mean over the time shown. The same engines stay for all of
    it.
    """
    ranked = over_time or expr.replace(_WINDOW, _SHOWN)
    chosen = f"topk by (role) ({TOP}, {ranked})"
    return [
        Ask(f"{expr} and {_ENGINE} {chosen}", "{{role}} {{engine}} {{node}}"),
        Ask(f"quantile by (role) (0.5, {expr} unless {_ENGINE} {chosen})", "{{role}}, others"),
    ]


def top_of_gauge(metric: str, matchers: str = R) -> list[Ask]:
    """`top` by a gauge of each engine."""
    gauge = f"{metric}{{{matchers}}}"
    return top(f"{BY_ROLE} ({gauge})", f"{BY_ROLE} (avg_over_time({gauge}{_SHOWN}))")


def top_of_counter(metric: str) -> list[Ask]:
    """`top` by the rate of a counter of each engine."""
    return top(f"{BY_ROLE} ({rate(metric)})")
