"""Node: what each GPU of one node does and waits for, and the device's own readings."""

from __future__ import annotations

from typing import Any

from grafana.builders.node import devices as node_devices
from grafana.builders.node import driver as node_driver
from grafana.builders.node import heat as node_heat
from grafana.builders.node import time as node_time
from grafana.builders.node.queries import N
from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.board import CLUSTER, board, choice

NODE = choice(
    "node", "Node", 'label_values(disagg_build_info{cluster=~"$cluster"}, node)', several=False
)
GPU = choice("gpu", "GPU", f"label_values(disagg_gpu_info{{{N}}}, gpu)")


def dashboard() -> dict[str, Any]:
    """One node, GPU by GPU."""
    return board(
        "node",
        "disagg-node / Node and GPUs",
        "One node, and its neighbours: what each GPU does and waits for, and the device's own "
        "readings.",
        variables=[CLUSTER, NODE, GPU],
        rows=[
            node_time.now(),
            node_time.gpus(),
            node_heat.nodes(),
            node_time.lost(),
            node_devices.activity(),
            node_devices.devices(),
            node_devices.assignments(),
        ],
        folded=[node_driver.driver(), alerts(N)],
        marks=[marks.alerts(N), marks.moves(N), marks.restarts(N), marks.throttling(N)],
    )
