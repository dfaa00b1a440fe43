"""Annotations: events marked on the time axis.

A window of two minutes holds two scrapes even at one scrape a minute.
"""

from __future__ import annotations

from typing import Any


def restarts(matchers: str, *, shown: bool = True) -> dict[str, Any]:
    """Worker restarts. It queries every worker: leave it off where there are many nodes."""
    return _mark(
        "Worker restarts",
        f"increase(disagg_worker_restarts_total{{{matchers}}}[2m]) > 0",
        "Restart",
        "{{worker}} on {{node}} was started again",
        "red",
        shown=shown,
    )


def moves(matchers: str) -> dict[str, Any]:
    """GPUs of a node that change their role."""
    return _mark(
        "Role changes",
        f"changes(disagg_node_role_gpus{{{matchers}}}[2m]) > 0",
        "Role change",
        "{{node}}: {{role}} gains or loses GPUs",
        "blue",
    )


def pool_moves(matchers: str) -> dict[str, Any]:
    """Pools of a cluster that grow or shrink."""
    return _mark(
        "Pool sizes change",
        f"changes(cluster_role:disagg_role_gpus:sum{{{matchers}}}[1m]) > 0",
        "Pool changes",
        "{{role}} gains or loses GPUs",
        "blue",
    )


def throttling(matchers: str) -> dict[str, Any]:
    """GPUs throttled by heat or power supply. It queries every GPU: for single nodes only."""
    held_back = f'{matchers}, reason=~"thermal|hw_slowdown"'
    return _mark(
        "Throttled GPUs",
        f"rate(disagg_gpu_throttle_seconds_total{{{held_back}}}[2m]) > 0.1",
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
    """Nodes whose counters were reset."""
    idle = f'{matchers}, role="none", phase="idle"'
    return _mark(
        "Daemon starts",
        f"resets(disagg_node_phase_seconds_total{{{idle}}}[2m]) > 0",
        "Daemon start",
        "the counters of {{node}} began anew",
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
