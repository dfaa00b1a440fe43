"""Node: what each GPU of one node does, what it waits for, and what the device itself says."""

from __future__ import annotations

from typing import Any

from grafana.builders import node_devices, node_time
from grafana.builders.board import CLUSTER, board, choice, mark
from grafana.builders.node_queries import N

NODE = choice(
    "node", "Node", 'label_values(disagg_build_info{cluster=~"$cluster"}, node)', several=False
)
GPU = choice("gpu", "GPU", f"label_values(disagg_gpu_info{{{N}}}, gpu)")


def dashboard() -> dict[str, Any]:
    """One node, GPU by GPU."""
    return board(
        "node",
        "disagg-node / Node and GPUs",
        "One node: what each GPU does, what it waits for, and what the device itself says.",
        variables=[CLUSTER, NODE, GPU],
        rows=[
            node_time.now(),
            node_time.gpus(),
            node_time.lost(),
            node_devices.activity(),
            node_devices.devices(),
            node_devices.assignments(),
        ],
        folded=[node_devices.clocks()],
        marks=[
            mark(
                "Worker restarts",
                f"increase(disagg_worker_restarts_total{{{N}}}[1m]) > 0",
                "Restart",
                "{{worker}} was started again",
                "red",
            ),
            mark(
                "Role changes",
                f"changes(disagg_node_role_gpus{{{N}}}[1m]) > 0",
                "Role change",
                "{{role}} gains or loses GPUs",
                "blue",
            ),
        ],
    )
