"""A plan as values for JSON: stable names with units, times with zone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from disagg_cluster.host.spans import timestamp
from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit
from disagg_cluster.planner.advice.past_split_text import past_split_value
from disagg_cluster.planner.advice.separation_advice import ModelSeparation
from disagg_cluster.planner.advice.separation_values import answer_value
from disagg_cluster.planner.outlook.values import Value
from disagg_cluster.planner.plan.gpu_plan import (
    GpuPlan,
    ModelPlan,
    PlanAction,
    RolePlan,
    UndecidedPlan,
)


def plan_value(
    plan: GpuPlan,
    cluster: str,
    past: Sequence[PastSplit | UndecidedPastSplit] = (),
    separations: Sequence[ModelSeparation] = (),
) -> Value:
    """The whole plan of a cluster, whose name is empty if not known.

    Models have `in_hindsight` and `separation` where these were computed.
    """
    mixed = {(each.key.model_name, each.key.engine_namespace): each for each in separations}
    wasted = {(each.key.model_name, each.key.engine_namespace): each for each in past}

    def model(each: ModelPlan | UndecidedPlan) -> Value:
        model_id = (each.model_name, each.engine_namespace)
        value = dict(_model(each, plan.now_seconds))
        if (split := wasted.get(model_id)) is not None:
            value["in_hindsight"] = past_split_value(split)
        if (advised := mixed.get(model_id)) is not None and advised.of_mixed:
            value["separation"] = [answer_value(advised, answer) for answer in advised.of_mixed]
        return value

    return {
        "cluster": cluster,
        "made_at": timestamp(plan.now_seconds),
        "horizon_seconds": plan.horizon_seconds,
        "actions": [_action(each) for each in plan.actions],
        "bounds": list(plan.bounds),
        "models": [model(each) for each in plan.models],
    }


def _action(action: PlanAction) -> Value:
    return {
        "kind": action.kind.value,
        "time": timestamp(action.at_seconds),
        "model_name": action.model_name,
        "engine_namespace": action.engine_namespace,
        "role": action.role.value,
        "to_role": None if action.to_role is None else action.to_role.value,
        "gpu_name": action.gpu_name,
        "gpus_per_engine": action.gpus,
        "engines": action.engines,
    }


def _model(model: ModelPlan | UndecidedPlan, now_seconds: float) -> Value:
    names = {"model_name": model.model_name, "engine_namespace": model.engine_namespace}
    if isinstance(model, UndecidedPlan):
        return {**names, "undecided": model.reason}
    return {
        **names,
        "horizon_seconds": model.horizon_seconds,
        "roles": [_role(each, now_seconds) for each in model.roles],
        "drivers": list(model.drivers),
        "error_so_far": model.error_so_far,
        "doing_nothing": asdict(model.doing_nothing),
        "following": asdict(model.following),
    }


def _role(role: RolePlan, now_seconds: float) -> Value:
    return {
        "role": role.role.value,
        "gpu_name": role.gpu_name,
        "gpus_per_engine": role.gpus,
        "engines": role.engines,
        "engines_now": role.engines_now,
        "reasons": list(role.reasons),
        "horizons": [
            {
                "horizon_seconds": row.horizon_seconds,
                "time": timestamp(now_seconds + row.horizon_seconds),
                "quantile": row.quantile,
                "current_gpus": row.current,
                "needed_gpus": row.needed,
                "recommended_gpus": row.recommended,
                "shortfall_gpus": row.shortfall,
            }
            for row in role.rows
        ],
    }
