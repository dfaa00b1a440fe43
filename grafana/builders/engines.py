"""Engines: who works, who waits, how full and how fast each engine is, and the router."""

from __future__ import annotations

from typing import Any

from grafana.builders import engine_process_rows, engine_rows
from grafana.builders.board import CLUSTER, board, choice, mark
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
            engine_rows.queues(),
            engine_rows.work(),
            engine_process_rows.workers(),
        ],
        folded=[engine_process_rows.router()],
        marks=[
            mark(
                "Worker restarts",
                f"increase(disagg_worker_restarts_total{{{N}}}[1m]) > 0",
                "Restart",
                "{{worker}} on {{node}} was started again",
                "red",
            ),
            mark(
                "Role changes",
                f"changes(disagg_node_role_gpus{{{N}}}[1m]) > 0",
                "Role change",
                "{{node}}: {{role}} gains or loses GPUs",
                "blue",
            ),
        ],
    )
