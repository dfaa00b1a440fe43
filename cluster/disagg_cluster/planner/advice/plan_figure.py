"""A plan as a picture: GPUs needed over its horizon, against those present."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.pictures import (
    COLOURS,
    MOST_ROWS,
    days,
    grid,
    save,
    time_axis,
    title,
)
from disagg_cluster.planner.outlook.wording import named
from disagg_cluster.planner.plan.gpu_plan import (
    GpuPlan,
    ModelPlan,
    RoleCourse,
    RolePlan,
    UndecidedPlan,
)

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
        if isinstance(model, UndecidedPlan):
            title(row[0], name, f"undecided: {model.reason}")
            continue
        for place, role in zip(row, model.roles, strict=False):
            _draw_role(place, role)
            title(place, f"{_named_role(role)}: {name}")
    save(figure, path)


def draw_change(before: GpuPlan, after: GpuPlan, path: Path) -> None:
    """Write a picture of the GPUs that two plans have, with a column for each role and GPU name.

    Raises:
        PlotError: matplotlib is not installed.
        CannotWriteError: The file cannot be written.
    """
    pairs = list(zip(before.models, after.models, strict=True))[:MOST_ROWS]
    columns = [
        list(dict.fromkeys(_named_role(role) for each in pair for role in _roles(each)))
        for pair in pairs
    ]
    figure, axes = grid(max(1, len(pairs)), max(1, *map(len, columns), 0))
    for row, pair, of_roles in zip(axes, pairs, columns, strict=False):
        name = named(LoadKey("", pair[0].model_name, pair[0].engine_namespace))
        undecided = "\n".join(
            f"{label}: undecided: {each.reason}"
            for each, (label, _) in zip(pair, _BOTH, strict=True)
            if isinstance(each, UndecidedPlan)
        )
        if not of_roles:
            title(row[0], name, undecided)
        for place, of_role in zip(row, of_roles, strict=False):
            for model, (label, colour) in zip(pair, _BOTH, strict=True):
                for role in _roles(model):
                    if _named_role(role) == of_role:
                        _draw_serving(place, role.course, label, colour)
            time_axis(place, "GPUs")
            title(place, f"{of_role}: {name}", undecided)
    save(figure, path)


def _roles(model: ModelPlan | UndecidedPlan) -> tuple[RolePlan, ...]:
    return model.roles if isinstance(model, ModelPlan) else ()


def _named_role(role: RolePlan) -> str:
    return f"{role.role.value} on {role.gpu_name}"


def _draw_role(axes: Axes, role: RolePlan) -> None:
    colour = COLOURS.get(role.role.value, "#444444")
    course = role.course
    for strength, (quantile, needed) in enumerate(sorted(course.needed.items()), 1):
        label = f"needed by {100 * quantile:g} % of futures at most"
        share = strength / len(course.needed)
        _draw_blocks(axes, course, needed, label=label, color=colour, alpha=share, lw=2.4)
    _draw_serving(axes, course, "recommended", "#222222")
    present = role.engines * role.gpus
    axes.axhline(present, color="#888888", lw=1.0, ls="--", label=f"there now: {present}")
    time_axis(axes, "GPUs")


def _draw_serving(axes: Axes, course: RoleCourse, label: str, colour: str) -> None:
    _draw_blocks(axes, course, course.serving, label=label, color=colour, lw=1.2)


def _draw_blocks(axes: Axes, course: RoleCourse, gpus: Sequence[int], **style: Any) -> None:
    """Draw GPUs block by block, to the end of the last one."""
    edges = range(len(gpus) + 1)
    times = [days(course.start_seconds + edge * course.step_seconds) for edge in edges]
    axes.step(times, [*gpus, gpus[-1]], where="post", **style)
