"""Cluster: how the GPU time is split, whether it is balanced, and where it is lost.

All queries use recorded series and the nodes' own sums, never series of single GPUs, so that the
cost of a view does not grow with the number of GPUs.
"""

from __future__ import annotations

from typing import Any

from grafana.builders.cluster import balance as cluster_balance
from grafana.builders.cluster import cost as cluster_cost
from grafana.builders.cluster import now as cluster_now
from grafana.builders.cluster import pools as cluster_pools
from grafana.builders.cluster import requests as cluster_requests
from grafana.builders.cluster import users as cluster_users
from grafana.builders.cluster import work as cluster_work
from grafana.builders.cluster.queries import C
from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.board import RECORDED_CLUSTER, board, choice

MODEL = choice(
    "model",
    "Model",
    f"label_values(disagg_node_phase_seconds_total{{{C}}}, model_name)",
    everything=".+",
)
NAMESPACE = choice(
    "namespace",
    "Namespace",
    f"label_values(disagg_node_phase_seconds_total{{{C}}}, engine_namespace)",
)


def dashboard() -> dict[str, Any]:
    """The dashboard to open first."""
    return board(
        "cluster",
        "disagg-node / Cluster",
        "What the cluster's GPUs do, which pools are short and what holds them back, how long "
        "users wait, and how GPU time is split between prefill and decode.",
        variables=[RECORDED_CLUSTER, MODEL, NAMESPACE],
        rows=[
            cluster_now.verdicts(),
            cluster_now.figures(),
            cluster_users.users(),
            cluster_balance.fullness(),
            cluster_balance.split(),
            cluster_now.waste(),
            cluster_pools.pools(),
            cluster_pools.idle(),
            cluster_requests.requests(),
            cluster_work.work(),
            cluster_work.tables(),
            cluster_cost.cost(),
            cluster_work.nodes(),
        ],
        folded=[alerts(C)],
        marks=[marks.alerts(C), marks.pool_moves(C), marks.restarts(C, shown=False)],
    )
