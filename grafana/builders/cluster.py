"""Cluster: how the GPU time is split, whether it is balanced, and where it is lost.

Everything comes from recorded series and from the nodes' own sums, never from single GPUs: the
cost of a look must not grow with the cluster.
"""

from __future__ import annotations

from typing import Any

from grafana.builders import cluster_balance, cluster_pools, cluster_work
from grafana.builders.board import CLUSTER, board, choice, mark
from grafana.builders.cluster_queries import C

MODEL = choice(
    "model",
    "Model",
    f"label_values(disagg_node_phase_seconds_total{{{C}}}, model_name)",
    everything=".+",
)


def dashboard() -> dict[str, Any]:
    """The dashboard to open first."""
    return board(
        "cluster",
        "disagg-node / Cluster",
        "How the cluster's GPU time is split between prefill and decode, whether the pools fit "
        "that split, and where GPU time is lost.",
        variables=[CLUSTER, MODEL],
        rows=[
            cluster_balance.now(),
            cluster_balance.balance(),
            cluster_pools.pools(),
            cluster_pools.idle(),
            cluster_work.work(),
            cluster_work.tables(),
            cluster_work.nodes(),
        ],
        marks=[
            mark(
                "Worker restarts",
                f"increase(disagg_worker_restarts_total{{{C}}}[1m]) > 0",
                "Restart",
                "{{worker}} on {{node}} was started again",
                "red",
            ),
            mark(
                "Pool sizes change",
                f"changes(cluster_role:disagg_role_gpus:sum{{{C}}}[1m]) > 0",
                "Pool changes",
                "{{role}} gains or loses GPUs",
                "blue",
            ),
        ],
    )
