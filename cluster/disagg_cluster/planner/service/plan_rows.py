"""Metric rows of a plan on the planner's page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.plan.gpu_plan import GpuPlan, ModelPlan, RolePlan, UndecidedPlan
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import Role

_REASONS = (("no forecast", "no_forecast"), ("no capacity", "no_capacity"))
_SECONDS_A_MINUTE = 60.0
_SECONDS_AN_HOUR = 3600.0


def write_plan(rows: MetricRows, plan: GpuPlan | None, running: Mapping[CostKey, int]) -> None:
    """Write a plan, and the GPUs that run, with or without a plan."""
    for key, engines in running.items():
        owner = (key.model_name, key.engine_namespace, key.gpu_name, key.role.value)
        rows.add("disagg_plan_gpus", engines * key.gpus, *owner, "current", "", "")
    if plan is None:
        return
    for model in plan.models:
        if isinstance(model, UndecidedPlan):
            labels = (model.model_name, model.engine_namespace, "", "", _reason(model))
            rows.set("disagg_plan_undecided", 1, *labels)
        else:
            counted = {
                (each.gpu_name, each.role)
                for each in running
                if (each.model_name, each.engine_namespace)
                == (model.model_name, model.engine_namespace)
            }
            _write_model(rows, model, counted)


def write_past(rows: MetricRows, past: Iterable[PastSplit | UndecidedPastSplit]) -> None:
    """Write wasted GPU time as a mean number of GPUs, since windows differ in length."""
    for each in past:
        if isinstance(each, PastSplit):
            hours = each.hindsight.window_seconds / _SECONDS_AN_HOUR
            owner = (each.key.model_name, each.key.engine_namespace)
            for role, idle in each.hindsight.present.idle_gpu_hours_by_role:
                rows.set("disagg_plan_wasted_gpus", idle / hours, *owner, role.value)


def _write_model(rows: MetricRows, model: ModelPlan, counted: Set[tuple[str, Role]]) -> None:
    owner = (model.model_name, model.engine_namespace)
    for role in model.roles:
        of = (*owner, role.gpu_name, role.role.value)
        # Running engines are counted already, whichever of them the plan knows.
        if (role.gpu_name, role.role) not in counted:
            rows.add("disagg_plan_gpus", role.engines * role.gpus, *of, "current", "", "")
        _write_role(rows, of, role)
    for kind, cost in (("current", model.doing_nothing), ("recommended", model.following)):
        idle = cost.idle_gpu_hours * _SECONDS_AN_HOUR / model.horizon_seconds
        rows.set("disagg_plan_idle_gpus", idle, *owner, kind)
        late = cost.minutes_over_target * _SECONDS_A_MINUTE
        rows.set("disagg_plan_over_target_seconds", late, *owner, kind)


def _write_role(rows: MetricRows, of: tuple[str, str, str, str], role: RolePlan) -> None:
    """Engines of several sizes on GPUs of one name are summed: no label distinguishes them."""
    recommended = {row.horizon_seconds: row.recommended for row in role.rows}
    for horizon, gpus in recommended.items():
        rows.add("disagg_plan_gpus", gpus, *of, "recommended", duration(horizon), "")
    for row in role.rows:
        ahead, quantile = duration(row.horizon_seconds), f"{row.quantile:g}"
        rows.add("disagg_plan_gpus", row.needed, *of, "needed", ahead, quantile)
        rows.add("disagg_plan_shortfall_gpus", row.missing, *of, ahead, quantile)


def _reason(plan: UndecidedPlan) -> str:
    return next((word for text, word in _REASONS if plan.reason.startswith(text)), "other")
