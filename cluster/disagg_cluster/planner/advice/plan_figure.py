"""A plan as a picture: GPUs needed at each horizon, against those present."""

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

_BOTH = (("as it is", "#888888"), ("if", "#d95f02"))


def draw_plan(plan: GpuPlan, path: Path) -> None:
    """Write a picture of the first `MOST_ROWS` models, with a column for each role.

    Raises:
        PlotError: matplotlib is not installed.
        CannotWriteError: The file cannot be written.
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


def draw_change(before: GpuPlan, after: GpuPlan, path: Path) -> None:
    """Write a picture of what two plans recommend, with a column for each role and GPU name.

    Raises:
        PlotError: matplotlib is not installed.
        CannotWriteError: The file cannot be written.
    """
    pairs = list(zip(before.models, after.models, strict=True))[:MOST_ROWS]
    columns = [
        sorted({_named_role(role) for each in pair for role in _roles(each)}) for pair in pairs
    ]
    figure, axes = grid(max(1, len(pairs)), max(1, *map(len, columns), 0))
    for row, pair, titles in zip(axes, pairs, columns, strict=False):
        name = named(LoadKey("", pair[0].model_name, pair[0].engine_namespace))
        row[0].set_title(name, fontsize=10, loc="left")
        for place, title in zip(row, titles, strict=False):
            place.set_title(f"{title}: {name}", fontsize=10, loc="left")
            for model, (label, colour) in zip(pair, _BOTH, strict=True):
                for role in _roles(model):
                    if _named_role(role) == title:
                        _draw_recommended(place, role, before.now_seconds, label, colour)
            time_axis(place, "GPUs")
        undecided = [
            f"{label}: undecided: {each.reason}"
            for each, (label, _) in zip(pair, _BOTH, strict=True)
            if isinstance(each, UndecidedPlan)
        ]
        if undecided:
            note(row[0], "\n".join(undecided))
    save(figure, path)


def _roles(model: ModelPlan | UndecidedPlan) -> tuple[RolePlan, ...]:
    return model.roles if isinstance(model, ModelPlan) else ()


def _named_role(role: RolePlan) -> str:
    return f"{role.role.value} on {role.gpu_name}"


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
    _draw_recommended(axes, role, now_seconds, "recommended", "#222222")
    present = role.engines * role.gpus
    axes.axhline(present, color="#888888", lw=1.0, ls="--", label=f"there now: {present}")
    time_axis(axes, "GPUs")


def _draw_recommended(
    axes: Axes, role: RolePlan, now_seconds: float, label: str, colour: str
) -> None:
    highest = max(row.quantile for row in role.rows)
    rows = [row for row in role.rows if row.quantile == highest]
    times = [days(now_seconds + row.horizon_seconds) for row in rows]
    recommended = [row.recommended for row in rows]
    axes.step(times, recommended, where="post", color=colour, lw=1.4, label=label)
