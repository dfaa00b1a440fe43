"""Engines: how busy, full and fast each engine is, what waits there, and the router."""

from __future__ import annotations

from typing import Any

from grafana.builders.engines import held_back as engine_held_back
from grafana.builders.engines import latency as engine_latency
from grafana.builders.engines import limits as engine_limits
from grafana.builders.engines import process_rows as engine_process_rows
from grafana.builders.engines import requests as engine_requests
from grafana.builders.engines import rows as engine_rows
from grafana.builders.engines import some as engine_some
from grafana.builders.engines.queries import N
from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.board import CLUSTER, board, choice

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
        "Engines side by side: how busy, full and fast each is and what waits there; their "
        "processes and the router.",
        variables=[CLUSTER, NODE, MODEL, ROLE, ENGINE],
        rows=[
            engine_rows.ranking(),
            engine_held_back.held_back(),
            engine_limits.limits(),
            engine_latency.latency(),
            engine_requests.queues(),
            engine_rows.work(),
            engine_latency.transfers(),
            engine_process_rows.workers(),
        ],
        folded=[engine_some.some_report(), engine_process_rows.router(), alerts(N)],
        marks=[marks.alerts(N), marks.moves(N), marks.restarts(N)],
    )
