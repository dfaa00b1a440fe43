"""Capacity: the load to come, the GPUs for it against those that are there, and what is wasted.

All of it is the planner's, but for the load itself: whatever shows a number of GPUs that somebody
should have takes it from `disagg_plan_gpus`.
"""

from __future__ import annotations

from typing import Any

from grafana.builders.capacity import gpus, load
from grafana.builders.capacity.queries import C
from grafana.builders.panels import annotations as marks
from grafana.builders.panels.alerts import alerts
from grafana.builders.panels.board import CLUSTER, board, choice

MODEL = choice(
    "model",
    "Model",
    f"label_values(disagg_forecast_tokens_per_second{{{C}}}, model_name)",
    several=False,
)


def dashboard() -> dict[str, Any]:
    """The dashboard of who plans for GPUs."""
    return board(
        "capacity",
        "disagg-node / Capacity",
        "The load of prefill and decode in the hours to come, the GPUs that each phase needs for "
        "it against those that are there, and how good such forecasts were. Needs a planner.",
        variables=[CLUSTER, MODEL],
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
