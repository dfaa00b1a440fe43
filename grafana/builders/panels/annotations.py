"""Annotations: events marked on the time axis.

Their queries look back over `$__rate_interval`: four times the least step of 30 s, so that it holds
two scrapes even at one scrape a minute, and longer than the step where that is wide, so that an
event between two steps is seen when days are shown.
"""

from __future__ import annotations

from typing import Any

_WINDOW = "$__rate_interval"
_THROTTLED_SECONDS = 12


def restarts(matchers: str, *, shown: bool = True) -> dict[str, Any]:
    """Worker restarts. It queries every worker: leave it off where there are many nodes."""
    return _mark(
        "Worker restarts",
        f"increase(disagg_worker_restarts_total{{{matchers}}}[{_WINDOW}]) > 0",
        "Restart",
        "{{worker}} on {{node}} was started again",
        "red",
        shown=shown,
    )


def moves(matchers: str) -> dict[str, Any]:
    """GPUs of a node that change their role."""
    return _mark(
        "Role changes",
        f"changes(disagg_node_role_gpus{{{matchers}}}[{_WINDOW}]) > 0",
        "Role change",
        "{{node}}: {{role}} gains or loses GPUs",
        "blue",
    )


def pool_moves(matchers: str) -> dict[str, Any]:
    """Pools of a cluster that grow or shrink."""
    return _mark(
        "Pool sizes change",
        f"changes(cluster_role:disagg_role_gpus:sum{{{matchers}}}[{_WINDOW}]) > 0",
        "Pool changes",
        "{{role}} gains or loses GPUs",
        "blue",
    )


def throttling(matchers: str) -> dict[str, Any]:
    """GPUs throttled by heat or power supply. It queries every GPU: for single nodes only."""
    held_back = f'{{{matchers}, reason=~"thermal|hw_slowdown"}}'
    return _mark(
        "Throttled GPUs",
        f"increase(disagg_gpu_throttle_seconds_total{held_back}[{_WINDOW}]) > {_THROTTLED_SECONDS}",
        "Throttled",
        "{{gpu}} is held back: {{reason}}",
        "orange",
    )


def alerts(matchers: str) -> dict[str, Any]:
    """Our firing alerts, including the one on throttled GPUs."""
    return _mark(
        "Alerts",
        f"ALERTS{{{firing(matchers)}}}",
        "{{alertname}}",
        "{{severity}} {{node}} {{role}} {{engine}}{{worker}} {{gpu}}",
        "purple",
    )


def daemon_starts(matchers: str) -> dict[str, Any]:
    """Daemons that have just begun; their counters go on, and a new pod has series of its own.

    A planner is none of a node.
    """
    begun = f'max by (cluster, node) (process_start_time_seconds{{{matchers}, node!=""}})'
    return _mark(
        "Daemon starts",
        f"{begun} > time() - $__rate_interval_ms / 1000",
        "Daemon start",
        "the daemon of {{node}} began",
        "semi-dark-green",
    )


def firing(matchers: str) -> str:
    """Matchers for our firing alerts."""
    return f'{matchers}, alertname=~"Disagg.+", alertstate="firing"'


def _mark(
    name: str, expr: str, title: str, text: str, colour: str, *, shown: bool = True
) -> dict[str, Any]:
    """An annotation wherever `expr` has a value above 0."""
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": shown,
        "hide": False,
        "iconColor": colour,
        "target": {"expr": expr, "refId": "Anno", "interval": "30s"},
        "titleFormat": title,
        "textFormat": text,
    }
