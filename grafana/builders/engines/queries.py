"""Selectors and expressions of the Engines dashboard's queries: the chosen engines."""

from __future__ import annotations

from grafana.builders.panels.queries import Ask

N = 'cluster=~"$cluster", node=~"$node"'
E = f'{N}, engine=~"$engine"'
R = f'{E}, role=~"$role"'
BY = "sum by (cluster, node, engine)"
EACH = "max by (cluster, node, engine)"
EACH_ROLE = "max by (cluster, node, engine, role)"
BY_ROLE = "sum by (cluster, node, engine, role)"
TOP = 3
"""Number of engines of each role with their own line: more are not legible."""
OTHERS = ".*, others$"
_ENGINE = "on (cluster, node, engine, role)"
_WINDOW, _SHOWN = "[$__rate_interval]", "[$__range] @ end()"


def rate(metric: str, matchers: str = R, window: str = "$__rate_interval") -> str:
    """The rate of a counter; windows follow the width of the panel."""
    return f"rate({metric}{{{matchers}}}[{window}])"


def rate_now(metric: str, matchers: str = R) -> str:
    """The rate of the last minute; of five where series are scraped once a minute, as in rules."""
    series = f"{metric}{{{matchers}}}"
    return f"rate({series}[1m]) or rate({series}[5m]) and {series}"


def top(expr: str, over_time: str = "") -> list[Ask]:
    """The engines of each role that are highest over the time shown, and the median of the others.

    `expr` has a value for each engine and role, from rates over `$__rate_interval`; or from a
    gauge, and then `over_time` is its mean over the time shown. The same engines are shown
    throughout.
    """
    ranked = over_time or expr.replace(_WINDOW, _SHOWN)
    chosen = f"topk by (role) ({TOP}, {ranked})"
    return [
        Ask(f"{expr} and {_ENGINE} {chosen}", "{{role}} {{engine}} {{node}}"),
        Ask(f"quantile by (role) (0.5, {expr} unless {_ENGINE} {chosen})", "{{role}}, others"),
    ]


def top_of_gauge(metric: str, matchers: str = R) -> list[Ask]:
    """`top` of a gauge of each engine."""
    gauge = f"{metric}{{{matchers}}}"
    return top(f"{EACH_ROLE} ({gauge})", f"{EACH_ROLE} (avg_over_time({gauge}{_SHOWN}))")


def top_of_counter(metric: str) -> list[Ask]:
    """`top` of the rate of a counter of each engine."""
    return top(f"{BY_ROLE} ({rate(metric)})")
