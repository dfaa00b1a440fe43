"""Advice for one model: whether to move, which worker, at what cost and with what gain."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.rebalance.decision import Move, Stay, decide
from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.pool_pair import (
    PAIR,
    PairedPools,
    futures_needs,
    paired_pools,
)
from disagg_cluster.planner.rebalance.pool_worker import (
    PoolWorker,
    WorkerId,
    cheapest,
    pool_capacity_used,
    unseen_words,
)
from disagg_cluster.planner.rebalance.shadow import ShadowAccounting
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_cluster.planner.rebalance.weighed_pools import WeighedPools


@dataclass(frozen=True, slots=True)
class ModelRebalance:
    """Advice for one model at one time; `worker` is the one to move, where engines are known.

    `measured`: the use of both pools is measured, so that it could have ruled out a move. `split`
    is None where the model has no two pools that can exchange engines. `accounting` are kept by the
    service only.
    """

    model_name: str
    engine_namespace: str
    split: RoleSplit | None
    advice: Move | Stay
    cost: MoveCost
    worker: PoolWorker | None = None
    measured: bool = False
    accounting: ShadowAccounting | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RebalanceView:
    """Pools of one model, their future needs, and its workers, at one time."""

    demand: ModelDemand
    pools: PairedPools
    needs: SplitNeeds
    workers: tuple[PoolWorker, ...]
    cost: MoveCost
    limits: RebalanceLimits
    short_weight: float
    now_seconds: float

    def decide(self, split: RoleSplit, log: MoveLog, *, measured: bool) -> Move | Stay:
        """Decide for a split; `measured` only for the present one, which measurements belong to.

        Nothing moves while engines are not seen: whether they still serve decides what pools need.
        """
        if unseen := unseen_words(self.workers):
            return Stay(f"{unseen}: nothing moves until all are seen, or forgotten")
        used = pool_capacity_used(self.workers) if measured else {}
        pair = WeighedPools(split, self.needs, self.cost, used)
        return decide(pair, self.limits, self.short_weight, log, self.now_seconds)

    def advise(self, log: MoveLog, left_out: Set[WorkerId] = frozenset()) -> ModelRebalance:
        """Return the advice for the present split; no worker in `left_out` is to be moved."""
        advice = self.decide(self.pools.split, log, measured=True)
        worker = None
        if isinstance(advice, Move):
            worker = cheapest(self.workers, advice.role, left_out)
            if worker is None and cheapest(self.workers, advice.role) is not None:
                advice = Stay(
                    f"every {advice.role} engine refused or failed to move within an hour"
                )
        return ModelRebalance(
            self.demand.model_name,
            self.demand.engine_namespace,
            self.pools.split,
            advice,
            self.cost,
            worker,
            measured=len(pool_capacity_used(self.workers)) == len(PAIR),
        )


def rebalance_view(
    demand: ModelDemand,
    workers: Sequence[PoolWorker],
    cost: MoveCost,
    limits: RebalanceLimits,
    short_weight: float,
    now_seconds: float,
) -> RebalanceView | ModelRebalance | None:
    """View of one model; its advice if there is nothing to decide, None without two pools.

    Args:
        demand: As for a plan.
        workers: Engines of any model.
        cost: Cost of one move.
        limits: Limits of moves.
        short_weight: As in a plan.
        now_seconds: Unix time.
    """
    pools = paired_pools(demand)
    if pools is None:
        return None
    name, namespace = demand.model_name, demand.engine_namespace
    if isinstance(pools, Stay):
        return ModelRebalance(name, namespace, None, pools, cost)
    needs = futures_needs(pools, demand, now_seconds)
    if isinstance(needs, Stay):
        return ModelRebalance(name, namespace, pools.split, needs, cost)
    own = tuple(
        each
        for each in workers
        if (each.kind.model_name, each.kind.engine_namespace) == (name, namespace)
    )
    return RebalanceView(demand, pools, needs, own, cost, limits, short_weight, now_seconds)
