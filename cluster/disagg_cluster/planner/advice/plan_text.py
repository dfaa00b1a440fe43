"""A plan as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disagg_cluster.host.columns import columns
from disagg_cluster.planner.advice.demands import LoadScale
from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit
from disagg_cluster.planner.advice.past_split_text import past_split_words
from disagg_cluster.planner.advice.separation_advice import ModelSeparation
from disagg_cluster.planner.advice.separation_text import verdict_words
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.outlook.horizons import duration
from disagg_cluster.planner.outlook.wording import clock, named
from disagg_cluster.planner.plan.gpu_plan import (
    SHORT_QUANTILE,
    ExpectedCost,
    GpuPlan,
    ModelPlan,
    PlanAction,
    PlanActionKind,
    RolePlan,
    UndecidedPlan,
)
from disagg_exporter.errors import escaped_lines
from disagg_exporter.model.counted import counted

_SHARE = f"{100 * SHORT_QUANTILE:g} %"
_LEGEND = (
    "RECOMMENDED now: to order; later: serving then. "
    f"SHORT: still missing then for {_SHARE} of futures."
)


def plan_text(
    plan: GpuPlan,
    cluster: str = "",
    past: Sequence[PastSplit | UndecidedPastSplit] = (),
    separations: Sequence[ModelSeparation] = (),
) -> str:
    """The whole plan: what to do, then each model with its rows, its reasons and its past waste.

    `past` and `separations` are for those of its models for which they were computed.
    """
    mixed = {(each.key.model_name, each.key.engine_namespace): each for each in separations}
    wasted = {(each.key.model_name, each.key.engine_namespace): each for each in past}
    parts = [_actions(plan)]
    for model in plan.models:
        lines = [_model(model, plan, cluster)]
        model_id = (model.model_name, model.engine_namespace)
        if (split := wasted.get(model_id)) is not None:
            lines += past_split_words(split)
        if (advised := mixed.get(model_id)) is not None:
            lines += [f"separation: {verdict_words(each)}" for each in advised.of_mixed]
        parts.append("\n".join(lines))
    return escaped_lines("\n\n".join(parts))


def change_text(
    before: GpuPlan, after: GpuPlan, scale: LoadScale, other: str = "", cluster: str = ""
) -> str:
    """What differs, and two plans beside each other: the most GPUs that each role needs and gets.

    `other` is the planner file of the second, if it has one of its own.
    """
    pairs = zip(before.models, after.models, strict=True)
    changes = (_change(old, new, cluster) for old, new in pairs)
    return escaped_lines("\n\n".join((f"if: {_difference(scale, other)}", *changes)))


def _difference(scale: LoadScale, other: str) -> str:
    factors = (
        ("requests", scale.requests),
        ("prompt lengths", scale.prompt_length),
        ("output lengths", scale.output_length),
    )
    words = [f"{name} times {factor:g}" for name, factor in factors if factor != 1]
    if scale.hit_rate is not None:
        words.append(f"{100 * scale.hit_rate:g} % of each prompt cached")
    if other:
        words.append(f"as {other} has it")
    return ", ".join(words) or "nothing differs; --requests-factor, --with and others say what does"


def _change(old: ModelPlan | UndecidedPlan, new: ModelPlan | UndecidedPlan, cluster: str) -> str:
    lines = [named(LoadKey(cluster, old.model_name, old.engine_namespace))]
    rows: list[tuple[str, ...]] = [
        ("", "ROLE", "GPU", "NOW", f"MOST NEEDED ({_SHARE})", "MOST RECOMMENDED")
    ]
    for name, model in (("as it is", old), ("if", new)):
        if isinstance(model, UndecidedPlan):
            rows.append((name, f"undecided: {model.reason}"))
            continue
        for role in model.roles:
            cells = (
                str(role.engines * role.gpus),
                str(max(role.course.needed[SHORT_QUANTILE])),
                str(max(role.course.serving)),
            )
            rows.append((name, role.role.value, role.gpu_name, *cells))
    lines.append(columns(rows, right=range(3, 6)))
    for name, model in (("as it is", old), ("if", new)):
        if isinstance(model, ModelPlan):
            lines.append(f"{name}: following it {_cost(model.following)}")
    return "\n".join(lines)


def _actions(plan: GpuPlan) -> str:
    reach = f"Planned at {clock(plan.now_seconds)} UTC for {duration(plan.horizon_seconds)}."
    lines = [reach] if plan.horizon_seconds else [f"Planned at {clock(plan.now_seconds)} UTC."]
    decided = [each for each in plan.models if isinstance(each, ModelPlan)]
    if not plan.actions:
        lines.append("Nothing to do." if decided else "No plan can be made.")
    lines += [f"  {action_words(each)}" for each in plan.actions]
    lines += [f"  bound: {each}" for each in plan.bounds]
    return "\n".join(lines)


def action_words(action: PlanAction) -> str:
    """One action as a sentence."""
    engines = f"{action.engines} x {action.gpus} {action.gpu_name}"
    of = f"of {named(LoadKey('', action.model_name, action.engine_namespace))}"
    when = f"at {clock(action.at_seconds)}"
    if action.kind is PlanActionKind.MOVE:
        return f"{when} move {engines} from {action.role} to {action.to_role} {of}"
    verb = "add" if action.kind is PlanActionKind.ADD else "remove"
    return f"{when} {verb} {engines} for {action.role} {of}"


def _model(model: ModelPlan | UndecidedPlan, plan: GpuPlan, cluster: str) -> str:
    head = named(LoadKey(cluster, model.model_name, model.engine_namespace))
    if isinstance(model, UndecidedPlan):
        return f"{head}\nundecided: {model.reason}"
    quantiles = sorted({row.quantile for role in model.roles for row in role.rows})
    needed = (f"{100 * each:g} %" for each in quantiles)
    titles = ("HORIZON", "AT (UTC)", "NOW", *needed, "RECOMMENDED", "SHORT")
    rows: list[tuple[str, ...]] = [titles]
    for role in model.roles:
        rows += [(f"GPUs for {role.role} on {role.gpu_name}:",)]
        rows += _rows(role, quantiles, plan.now_seconds)
    lines = [head, columns(rows, right=range(2, len(titles))), _LEGEND]
    if model.horizon_seconds < plan.horizon_seconds:
        lines.append(f"planned for {duration(model.horizon_seconds)} only: its history is short")
    for role in model.roles:
        lines += [f"{role.role} on {role.gpu_name}: {reason}" for reason in role.reasons]
    lines += [f"changed: {each}" for each in model.drivers]
    lines.append(f"so far: {model.error_so_far}")
    lines.append(f"doing nothing: {_cost(model.doing_nothing)}")
    lines.append(f"following it: {_cost(model.following)}")
    return "\n".join(lines)


def _rows(role: RolePlan, quantiles: list[float], now_seconds: float) -> Iterator[tuple[str, ...]]:
    for horizon in sorted({row.horizon_seconds for row in role.rows}):
        at = {row.quantile: row for row in role.rows if row.horizon_seconds == horizon}
        any_row = next(iter(at.values()))
        yield (
            duration(horizon),
            clock(now_seconds + horizon),
            str(any_row.current),
            *(str(at[each].needed) if each in at else "" for each in quantiles),
            str(any_row.recommended),
            str(at[SHORT_QUANTILE].shortfall),
        )


def _cost(cost: ExpectedCost) -> str:
    money = "" if cost.money is None else f" for {cost.money:,.2f}"
    return (
        f"{counted(round(cost.minutes_over_target), 'minute')} over target, "
        f"{cost.gpu_hours:,.1f} GPU-hours{money}, {cost.idle_gpu_hours:,.1f} of them not needed"
    )
