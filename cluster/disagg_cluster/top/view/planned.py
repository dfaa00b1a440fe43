"""The planner's output: GPUs by role, moves and bottlenecks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from disagg_cluster.top.readings.values import AdvisedMove, BottleneckReading, PlanReading
from disagg_cluster.top.view.values import BottleneckRow, RolePlanRow, model_words

_ACTIONS = {
    "route_away": "route away from it",
    "set_max_num_batched_tokens": "set max_num_batched_tokens",
    "set_max_num_seqs": "set max_num_seqs",
    "move_worker": "move a worker to this role",
    "replace_gpu": "replace the GPU",
    "merge_pools": "merge the pools",
    "none": "nothing to do about it here",
}


def plan_rows(plans: Sequence[PlanReading]) -> tuple[RolePlanRow, ...]:
    """The plan as rows."""
    return tuple(
        RolePlanRow(
            plan.key.cluster,
            plan.key.model_name,
            plan.key.namespace,
            plan.key.role,
            plan.gpu_name,
            plan.current,
            plan.needed,
            plan.recommended,
            plan.horizon,
        )
        for plan in plans
    )


def moves_of(plans: Sequence[PlanReading], *, several: bool = False) -> tuple[str, ...]:
    """Texts of the changes from the current GPUs to the recommended ones.

    GPUs of one type move between the roles of one model as far as possible; the rest is added or
    removed. Where there are `several` clusters, each text names its own.
    """
    changes: dict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    horizons: dict[tuple[str, str, str, str], str] = {}
    for plan in plans:
        if plan.current is not None and plan.recommended is not None:
            whose = (plan.key.cluster, plan.key.model_name, plan.key.namespace, plan.gpu_name)
            changes[whose][plan.key.role] = plan.recommended - plan.current
            horizons[whose] = plan.horizon
    return tuple(
        f"{words} of {model_words(model or 'the model', namespace, cluster if several else '')} "
        f"within {horizons[cluster, model, namespace, gpu_name]}"
        for (cluster, model, namespace, gpu_name), by_role in sorted(changes.items())
        for words in _moves(gpu_name, by_role)
    )


def _moves(gpu_name: str, by_role: dict[str, float]) -> Iterator[str]:
    left = dict(by_role)
    for short in [role for role, change in left.items() if change > 0]:
        for spare in [role for role, change in left.items() if change < 0]:
            moved = min(left[short], -left[spare])
            if moved > 0:
                yield f"move {moved:g} x {gpu_name} from {spare} to {short}"
                left[short] -= moved
                left[spare] += moved
    for role, change in left.items():
        if change:
            yield f"{'add' if change > 0 else 'remove'} {abs(change):g} x {gpu_name} for {role}"


def advised_moves(moves: Sequence[AdvisedMove], *, several: bool = False) -> tuple[str, ...]:
    """Texts of the role changes that would pay off now, likewise."""
    return tuple(
        f"now: {_mover(move)} from {move.role} to {move.to_role}{_of(move, several=several)}"
        for move in moves
    )


def _of(move: AdvisedMove, *, several: bool) -> str:
    cluster = move.cluster if several else ""
    if not (move.model_name or move.namespace or cluster):
        return ""
    return f" of {model_words(move.model_name or 'the model', move.namespace, cluster)}"


def _mover(move: AdvisedMove) -> str:
    on = f" on {move.node}" if move.node else ""
    return f"worker {move.worker}{on}" if move.worker else "an engine"


def bottleneck_rows(
    bottlenecks: Sequence[BottleneckReading], *, several: bool = False
) -> tuple[BottleneckRow, ...]:
    """Verdicts as texts, likewise; an unknown code is kept as it is."""
    return tuple(
        BottleneckRow(
            model_words(each.model_name, each.namespace, each.cluster if several else ""),
            _whose(each),
            _cause(each.cause),
            _ACTIONS.get(each.action, each.action),
            each.confidence_ratio,
            each.ttft_cost_seconds,
        )
        for each in bottlenecks
    )


def _whose(bottleneck: BottleneckReading) -> str:
    # Imported only when a planner has reported a verdict.
    from disagg_cluster.planner.diagnose.verdict.values import BEFORE_ENGINES

    if bottleneck.cause in BEFORE_ENGINES:
        return "before the engines"
    if not bottleneck.engine:
        return f"the {bottleneck.role} pool"
    on = f" on {bottleneck.node}" if bottleneck.node else ""
    return f"{bottleneck.role} engine {bottleneck.engine}{on}"


def _cause(cause: str) -> str:
    # Imported only when a planner has reported a verdict.
    from disagg_cluster.planner.diagnose.words.vocabulary import CAUSES

    known = {each.value: words for each, words in CAUSES.items()}
    return known.get(cause, cause)
