"""Engines: who works, who waits, how full and how fast each engine is, and the router."""

from __future__ import annotations

from typing import Any

from grafana.builders import (
    engine_latency,
    engine_limits,
    engine_process_rows,
    engine_requests,
    engine_rows,
    engine_some,
    marks,
)
from grafana.builders.alerts import alerts
from grafana.builders.board import CLUSTER, board, choice
from grafana.builders.engine_queries import N

NODE = choice("node", "Node", 'label_values(disagg_build_info{cluster=~"$cluster"}, node)')
ROLE = choice("role", "Role", f"label_values(disagg_engine_info{{{N}}}, role)")
MODEL = choice("model", "Model", f"label_values(disagg_engine_info{{{N}}}, model_name)")
ENGINE = choice(
    "engine",
    "Engine",
    f'label_values(disagg_engine_info{{{N}, role=~"$role", model_name=~"$model"}}, engine)',
    everything=None,
)


def dashboard() -> dict[str, Any]:
    """All engines of the chosen nodes, side by side."""
    return board(
        "engines",
        "disagg-node / Engines",
        "Engines side by side: who works, who waits, how full and how fast each is; their "
        "processes and the router.",
        variables=[CLUSTER, NODE, MODEL, ROLE, ENGINE],
        rows=[
            engine_rows.ranking(),
            engine_limits.limits(),
            engine_latency.latency(),
            engine_requests.queues(),
            engine_rows.work(),
            engine_latency.transfers(),
            engine_process_rows.workers(),
        ],
        folded=[engine_some.some_tell(), engine_process_rows.router(), alerts(N)],
        marks=[marks.alerts(N), marks.moves(N), marks.restarts(N)],
    )
