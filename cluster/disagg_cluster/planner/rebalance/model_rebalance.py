"""What is said of one model: whether to move, which worker, at what cost, and what that brings."""

from __future__ import annotations

from collections.abc import Sequence
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
from disagg_cluster.planner.rebalance.pool_worker import PoolWorker, cheapest, pool_capacity_used
from disagg_cluster.planner.rebalance.shadow import ShadowBooks
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_cluster.planner.rebalance.weighed_pools import WeighedPools


@dataclass(frozen=True, slots=True)
class ModelRebalance:
    """One model's advice at a moment; `worker` is the one to move, where engines are known.

    `measured`: how full both pools are is known, so that it could have spoken against a move.
    `split` is None where it has no two pools that could give to each other. `books` are kept by
    the service only.
    """

    model_name: str
    engine_namespace: str
    split: RoleSplit | None
    said: Move | Stay
    cost: MoveCost
    worker: PoolWorker | None = None
    measured: bool = False
    books: ShadowBooks | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RebalanceView:
    """One model's pools, what they will need, and its workers, at a moment."""

    demand: ModelDemand
    pools: PairedPools
    needs: SplitNeeds
    workers: tuple[PoolWorker, ...]
    cost: MoveCost
    limits: RebalanceLimits
    short_weight: float
    now_seconds: float

    def decided(self, split: RoleSplit, log: MoveLog, *, measured: bool) -> Move | Stay:
        """What to do with a split; what is measured is of the one that there is."""
        used = pool_capacity_used(self.workers) if measured else {}
        pair = WeighedPools(split, self.needs, self.cost, used)
        return decide(pair, self.limits, self.short_weight, log, self.now_seconds)

    def advised(self, log: MoveLog) -> ModelRebalance:
        """What is said of the split that there is."""
        said = self.decided(self.pools.split, log, measured=True)
        return ModelRebalance(
            self.demand.model_name,
            self.demand.engine_namespace,
            self.pools.split,
            said,
            self.cost,
            cheapest(self.workers, said.role) if isinstance(said, Move) else None,
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
    """Look at one model; its advice where there is nothing to decide, None without two pools.

    Args:
        demand: As for a plan.
        workers: Engines of any model.
        cost: What one move takes.
        limits: What moves stay within.
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
