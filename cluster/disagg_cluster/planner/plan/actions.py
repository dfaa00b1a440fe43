"""The actions of a plan, from its engines by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from disagg_cluster.planner.plan.gpu_plan import PlanAction, PlanActionKind
from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.plan.role_pool import RolePool
from disagg_cluster.planner.plan.schedule import PlanTiming
from disagg_cluster.planner.plan.worker_option import Counts

_Engines = tuple[str, str, str, int]
"""Model, its namespace, and the GPUs of each engine."""


def pool_actions(
    demand: ModelDemand,
    pool: RolePool,
    counts: Counts,
    block_starts: Sequence[float],
    timing: PlanTiming,
    now_seconds: float,
) -> list[PlanAction]:
    """Every change of one pool, in order; additions are ordered a lead time in advance."""
    found = []
    before = pool.present
    for start, count in zip(block_starts, counts.tolist(), strict=True):
        if count == before:
            continue
        grows = count > before
        at = start - timing.lead_seconds if grows else start
        found.append(
            PlanAction(
                kind=PlanActionKind.ADD if grows else PlanActionKind.REMOVE,
                model_name=demand.model_name,
                engine_namespace=demand.engine_namespace,
                role=pool.option.role,
                gpu_name=pool.option.gpu_name,
                gpus=pool.option.gpus,
                engines=abs(count - before),
                at_seconds=max(now_seconds, at),
            )
        )
        before = count
    return found


def with_moves(actions: Sequence[PlanAction]) -> tuple[PlanAction, ...]:
    """Turn a removal into a move if another role of the model adds equal engines later.

    Sorted by time, then in the order of the models.
    """
    remaining = list(actions)
    moves = []
    removals: defaultdict[_Engines, list[int]] = defaultdict(list)
    for index, each in enumerate(remaining):
        if each.kind is PlanActionKind.REMOVE:
            removals[_engines_of(each)].append(index)
    for index, added in enumerate(remaining):
        if added.kind is not PlanActionKind.ADD:
            continue
        for other in removals[_engines_of(added)]:
            removed = remaining[other]
            moved = min(remaining[index].engines, removed.engines)
            if not moved or not _can_become(removed, added):
                continue
            remaining[index] = replace(remaining[index], engines=remaining[index].engines - moved)
            remaining[other] = replace(removed, engines=removed.engines - moved)
            moves.append(
                replace(
                    added,
                    kind=PlanActionKind.MOVE,
                    role=removed.role,
                    to_role=added.role,
                    engines=moved,
                )
            )
    kept = [each for each in remaining if each.engines]
    return tuple(sorted([*kept, *moves], key=lambda each: each.at_seconds))


def _can_become(removed: PlanAction, added: PlanAction) -> bool:
    """Whether one role removes engines in time for the other, which adds such engines."""
    return removed.at_seconds <= added.at_seconds and removed.role is not added.role


def _engines_of(action: PlanAction) -> _Engines:
    return action.model_name, action.engine_namespace, action.gpu_name, action.gpus
