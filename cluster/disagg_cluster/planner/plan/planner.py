"""Makes a plan from demands and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.plan.actions import pool_actions, with_moves
from disagg_cluster.planner.plan.allocation import EngineKind, allocate_blocks
from disagg_cluster.planner.plan.bounds import PlanBounds
from disagg_cluster.planner.plan.gpu_plan import GpuPlan, PlanAction, UndecidedPlan
from disagg_cluster.planner.plan.model_demand import BLOCK_SECONDS, ModelDemand, RunningEngines
from disagg_cluster.planner.plan.model_rows import model_plan
from disagg_cluster.planner.plan.planned_model import (
    PlannedModel,
    beside_mixed,
    words_beside,
)
from disagg_cluster.planner.plan.reasons import clock
from disagg_cluster.planner.plan.role_pool import desired_engines, role_pools
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_exporter.model.counted import counted


def plan(
    demands: Sequence[ModelDemand],
    bounds: PlanBounds,
    timing: PlanTiming,
    now_seconds: float,
    costs: PlanCosts | None = None,
    others: Sequence[RunningEngines] = (),
) -> GpuPlan:
    """Plan how many GPUs each phase of each model needs, when, and what to do.

    Blocks are five minutes, or the steps of the forecast if these are longer. Where one model is
    forecast for a shorter time than others, or than an engine takes to start, the load of its last
    block is taken to continue. A model for which no plan can be made is undecided, and keeps its
    GPUs.

    Args:
        demands: The models that share the GPUs.
        bounds: GPUs and money there are.
        timing: How long starting and draining take, and how long engines are held.
        now_seconds: Unix time.
        costs: What being short costs over being idle.
        others: Engines that run for none of these models; they keep their GPUs.
    """
    costs = costs or PlanCosts()
    running = [*others, *(each for demand in demands for each in demand.running)]
    bounds = bounds.with_running((each.gpu_name, each.engines * each.gpus) for each in running)
    outcomes = [_planned(demand, bounds, costs, now_seconds) for demand in demands]
    planned = [each for each in outcomes if isinstance(each, PlannedModel)]
    steps = {each.paths.step_seconds for each in planned}
    block = max(steps, default=BLOCK_SECONDS)
    if len(steps) > 1:
        raise ValueError(f"futures in steps of {sorted(steps)} s: one plan has one clock")
    start = min((each.paths.start_seconds for each in planned), default=now_seconds)
    reachable = max(0, int(np.ceil((now_seconds + timing.lead_seconds - start) / block - 1e-9)))
    forecast_blocks = max((each.paths.steps for each in planned), default=0)
    # A young model neither shortens the plan of others, nor goes without engines that start slowly.
    blocks = max(forecast_blocks, reachable + 1) if planned else 0
    for each in planned:
        each.extend(blocks)
        each.granted = [
            desired_engines(pools, reachable, block / 3600, timing, costs) for pools in each.roles
        ]
    hold_blocks = max(1, round(timing.hold_seconds / block))
    binding = allocate_blocks(planned, _taken(outcomes, demands, others), bounds, hold_blocks)
    starts = [start + number * block for number in range(blocks)]
    actions: list[PlanAction] = []
    for each in planned:
        for pool, counts in each.pools:
            actions += pool_actions(each.demand, pool, counts, starts, timing, now_seconds)
    models = tuple(
        model_plan(each, bounds, timing, costs, reachable, now_seconds)
        if isinstance(each, PlannedModel)
        else each
        for each in outcomes
    )
    return GpuPlan(
        now_seconds=now_seconds,
        horizon_seconds=forecast_blocks * block,
        models=models,
        actions=with_moves(actions),
        bounds=tuple(
            f"{reason} from {clock(starts[first], now_seconds)} on: "
            f"at most {counted(short, 'GPU')} short of what is needed"
            for reason, (first, short) in binding.items()
        ),
    )


def _planned(
    demand: ModelDemand, bounds: PlanBounds, costs: PlanCosts, now_seconds: float
) -> PlannedModel | UndecidedPlan:
    blocks = demand.blocks(now_seconds)
    if isinstance(blocks, UndecidedForecast):
        return _undecided(demand, f"no forecast: {blocks.why}")
    rest, busier = (
        beside_mixed(demand, blocks.scaled(factor)) for factor in (1.0, 1 + costs.release_margin)
    )
    roles = []
    for role in demand.roles:
        pools = role_pools(demand, role, rest, busier, bounds.least_engines, costs, bounds.price)
        if isinstance(pools, UndecidedCapacity):
            return _undecided(demand, f"no capacity for {role}: {pools.reason}")
        roles.append(pools)
    return PlannedModel(demand, rest, roles, [], tuple(words_beside(demand, blocks, roles)))


def _undecided(demand: ModelDemand, reason: str) -> UndecidedPlan:
    return UndecidedPlan(demand.model_name, demand.engine_namespace, reason)


def _taken(
    outcomes: Sequence[PlannedModel | UndecidedPlan],
    demands: Sequence[ModelDemand],
    others: Sequence[RunningEngines],
) -> Counter[EngineKind]:
    """Engines without a decision: others', of undecided models, and of kinds in no pool."""
    staying = list(others)
    for demand, outcome in zip(demands, outcomes, strict=True):
        pools = [] if isinstance(outcome, UndecidedPlan) else outcome.pools
        decided = {(pool.option.role, pool.option.gpu_name, pool.option.gpus) for pool, _ in pools}
        staying += [
            each for each in demand.running if (each.role, each.gpu_name, each.gpus) not in decided
        ]
    taken: Counter[EngineKind] = Counter()
    for each in staying:
        taken[each.gpu_name, each.gpus] += each.engines
    return taken
