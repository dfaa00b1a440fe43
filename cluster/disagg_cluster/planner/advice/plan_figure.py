"""A plan as a picture: GPUs needed at each horizon against those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.pictures import (
    COLOURS,
    MOST_ROWS,
    days,
    grid,
    note,
    save,
    time_axis,
)
from disagg_cluster.planner.outlook.wording import named
from disagg_cluster.planner.plan.gpu_plan import GpuPlan, ModelPlan, RolePlan, UndecidedPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_plan(plan: GpuPlan, path: Path) -> None:
    """Write a picture of the first `MOST_ROWS` models, each role a column.

    Raises:
        PlotError: matplotlib is not there, or the file cannot be written.
    """
    shown = plan.models[:MOST_ROWS]
    most = max((len(each.roles) for each in shown if isinstance(each, ModelPlan)), default=1)
    figure, axes = grid(max(1, len(shown)), most)
    for row, model in zip(axes, shown, strict=False):
        name = named(LoadKey("", model.model_name, model.engine_namespace))
        row[0].set_title(name, fontsize=10, loc="left")
        if isinstance(model, UndecidedPlan):
            note(row[0], f"undecided: {model.reason}")
            continue
        for place, role in zip(row, model.roles, strict=False):
            _draw_role(place, role, plan.now_seconds)
            place.set_title(f"{role.role} on {role.gpu_name}: {name}", fontsize=10, loc="left")
    save(figure, path)


def _draw_role(axes: Axes, role: RolePlan, now_seconds: float) -> None:
    colour = COLOURS.get(role.role.value, "#444444")
    quantiles = sorted({row.quantile for row in role.rows})
    for strength, quantile in enumerate(quantiles, 1):
        rows = [row for row in role.rows if row.quantile == quantile]
        times = [days(now_seconds + row.horizon_seconds) for row in rows]
        needed = [row.needed for row in rows]
        label = f"needed by {100 * quantile:g} % of futures at most"
        share = strength / len(quantiles)
        axes.plot(times, needed, color=colour, alpha=share, marker="o", ms=3, label=label)
    rows = [row for row in role.rows if row.quantile == quantiles[-1]]
    times = [days(now_seconds + row.horizon_seconds) for row in rows]
    recommended = [row.recommended for row in rows]
    axes.step(times, recommended, where="post", color="#222222", lw=1.4, label="recommended")
    present = role.engines * role.gpus
    axes.axhline(present, color="#888888", lw=1.0, ls="--", label=f"there now: {present}")
    time_axis(axes, "GPUs")
