"""What is to be done, from engines by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disagg_cluster.planner.plan.gpu_plan import PlanAction, PlanActionKind
from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.plan.role_pool import RolePool
from disagg_cluster.planner.plan.schedule import PlanTiming
from disagg_cluster.planner.plan.worker_option import Counts


def pool_actions(
    demand: ModelDemand,
    pool: RolePool,
    counts: Counts,
    block_starts: Sequence[float],
    timing: PlanTiming,
    now_seconds: float,
) -> list[PlanAction]:
    """Every change of one pool, in order; what is added is ordered a lead time before."""
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
    """Make moves of engines that one role gives up before another of the model adds as large ones.

    In order of time, then of the models.
    """
    left = list(actions)
    moves = []
    for index, added in enumerate(left):
        if added.kind is not PlanActionKind.ADD:
            continue
        for other, removed in enumerate(left):
            moved = min(left[index].engines, removed.engines)
            if not moved or not _gives(removed, added):
                continue
            left[index] = replace(left[index], engines=left[index].engines - moved)
            left[other] = replace(removed, engines=removed.engines - moved)
            moves.append(
                replace(
                    added,
                    kind=PlanActionKind.MOVE,
                    role=removed.role,
                    to_role=added.role,
                    engines=moved,
                )
            )
    kept = [each for each in left if each.engines]
    return tuple(sorted([*kept, *moves], key=lambda each: each.at_seconds))


def _gives(removed: PlanAction, added: PlanAction) -> bool:
    """Whether what one role gives up is what the other adds, and in time."""
    return (
        removed.kind is PlanActionKind.REMOVE
        and removed.at_seconds <= added.at_seconds
        and removed.role is not added.role
        and _engines_of(removed) == _engines_of(added)
    )


def _engines_of(action: PlanAction) -> tuple[str, str, str, int]:
    return action.model_name, action.engine_namespace, action.gpu_name, action.gpus
