"""The two pools of one model, from its demand and the engines that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_cluster.planner.capacity.decode_pool import decode_pool
from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.model_demand import ModelDemand, RunningEngines
from disagg_cluster.planner.plan.worker_option import WorkerOption, block_needs, step_mix
from disagg_cluster.planner.rebalance.decision import Stay
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

PAIR = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True, eq=False)
class PairedPools:
    """Two pools of a model that can exchange engines, and the capacity options of their roles."""

    split: RoleSplit
    gpus: int
    options: tuple[WorkerOption, WorkerOption]


def paired_pools(demand: ModelDemand) -> PairedPools | Stay | None:
    """The pools of a model, or why its engines cannot move; None if it has no two pools.

    An engine keeps its GPUs and tensor-parallel size, so the engines of both pools must have the
    same number of GPUs with the same name.
    """
    pools: dict[Role, list[RunningEngines]] = {
        role: [each for each in demand.running if each.role is role and each.engines]
        for role in PAIR
    }
    if not all(pools.values()):
        return None
    kinds = {(each.gpu_name, each.gpus) for pool in pools.values() for each in pool}
    if len(kinds) > 1:
        pools_text = ", ".join(
            f"{role} on {each.gpus} x {each.gpu_name}" for role in PAIR for each in pools[role]
        )
        return Stay(f"engines do not fit the other role: {pools_text}")
    ((gpu_name, gpus),) = kinds
    options = {
        option.role: option
        for option in demand.options
        if (option.gpu_name, option.gpus) == (gpu_name, gpus)
    }
    missing = [role for role in PAIR if role not in options]
    if missing:
        return Stay(f"what steps of {missing[0]} engines take is not known")
    counts = [sum(each.engines for each in pools[role]) for role in PAIR]
    return PairedPools(RoleSplit(*counts), gpus, (options[Role.PREFILL], options[Role.DECODE]))


def futures_needs(pools: PairedPools, demand: ModelDemand, now_seconds: float) -> SplitNeeds | Stay:
    """Needs of both pools in the futures, or why they are unknown."""
    blocks = demand.blocks(now_seconds)
    if isinstance(blocks, UndecidedForecast):
        return Stay(f"no forecast: {blocks.why}")
    return split_needs(pools.options, blocks, demand)


def split_needs(
    options: Sequence[WorkerOption], loads: LoadPaths, demand: ModelDemand
) -> SplitNeeds | Stay:
    """Needs of both pools under these loads, or why they are unknown."""
    needs = []
    for option in options:
        found = block_needs(option, loads, demand.base_mix)
        if isinstance(found, UndecidedCapacity):
            return Stay(f"no capacity for {option.role}: {found.reason}")
        needs.append(found)
    floor = step_floor(options[1], step_mix(loads, 0, demand.base_mix))
    return SplitNeeds(needs[0], needs[1], loads.step_seconds, floor)


def step_floor(decode: WorkerOption, mix: RequestMix) -> float:
    """Share of a full decode engine's step that does not shrink with its batch; 1 if unknown."""
    try:
        return decode_pool(decode.costs, mix, decode.targets).step_floor()
    except UnseenStepError:
        return 1.0
