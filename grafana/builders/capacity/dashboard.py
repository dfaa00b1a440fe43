"""Capacity: the coming load, the GPUs it needs against those there are, and what is wasted.

Everything but the load itself comes from the planner: every recommended number of GPUs is read
from `disagg_plan_gpus`.
"""

from __future__ import annotations

from typing import Any

from grafana.builders.capacity import gpus, load
from grafana.builders.capacity.queries import LOAD, C
from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.board import board, choice

CLUSTER = choice("cluster", "Cluster", f"label_values({LOAD}, cluster)", several=False)
MODEL = choice("model", "Model", f"label_values({LOAD}{{{C}}}, model_name)", several=False)
NAMESPACE = choice(
    "namespace",
    "Namespace",
    f'label_values({LOAD}{{{C}, model_name="$model"}}, engine_namespace)',
    several=False,
)


def dashboard() -> dict[str, Any]:
    """The dashboard for capacity planning."""
    return board(
        "capacity",
        "disagg-node / Capacity",
        "The load of prefill and decode in the coming hours, the GPUs that each phase needs for "
        "it against those there are, and how accurate forecasts were. Needs a planner.",
        variables=[CLUSTER, MODEL, NAMESPACE],
        rows=[
            gpus.now(),
            load.foreseen(),
            load.ahead(),
            gpus.needed(),
            gpus.wasted(),
        ],
        folded=[alerts(C)],
        marks=[marks.alerts(C), marks.pool_moves(C), marks.restarts(C, shown=False)],
    )
