"""A model while its plan is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.model_demand import ModelDemand, RunningEngines
from disagg_cluster.planner.plan.role_pool import RolePool, overflow_engines
from disagg_cluster.planner.plan.worker_option import Counts, block_needs
from disagg_exporter.model import Role
from disagg_exporter.model.counted import agreeing, counted


@dataclass(slots=True, eq=False)
class PlannedModel:
    """A model's pools by role, and the engines that each of them is granted by block.

    `paths` is the load of these pools, as far as it is forecast; `beside` says by role which
    other engines serve the model.
    """

    demand: ModelDemand
    paths: LoadPaths
    roles: list[list[RolePool]]
    granted: list[list[Counts]]
    beside: tuple[tuple[Role, str], ...] = ()

    @property
    def pools(self) -> list[tuple[RolePool, Counts]]:
        """All pools with their engines."""
        return [
            pair
            for pools, counts in zip(self.roles, self.granted, strict=True)
            for pair in zip(pools, counts, strict=True)
        ]

    def extend(self, blocks: int) -> None:
        """Extend all needs to this many blocks; those of the last known block continue."""
        self.roles = [[_extended(pool, blocks) for pool in pools] for pools in self.roles]

    def fill_with(self, rank: int, desired: list[list[Counts]], hold_blocks: int) -> None:
        """Let the pools of a rank fill in for what others requested and were not granted."""
        for pools, of_role, counts in zip(self.roles, desired, self.granted, strict=True):
            if rank < len(pools):
                counts[rank] = overflow_engines(pools, of_role, counts, rank, hold_blocks)

    def short_gpus(self, block: int) -> int:
        """GPUs that the first pools lack for what is needed in a block."""
        short = 0
        for pools, counts in zip(self.roles, self.granted, strict=True):
            served = sum(
                engines[block] / max(pool.needed[block], 1)
                for pool, engines in zip(pools, counts, strict=True)
            )
            missing = np.ceil((1 - min(served, 1.0)) * pools[0].needed[block] - 1e-9)
            short += int(missing) * pools[0].option.gpus
        return short


def _extended(pool: RolePool, blocks: int) -> RolePool:
    further = max(0, blocks - len(pool.needed))
    needs = np.pad(pool.needs, ((0, 0), (0, further)), mode="edge")
    needed, keep = (np.pad(each, (0, further), mode="edge") for each in (pool.needed, pool.keep))
    return replace(pool, needs=needs, needed=needed, keep=keep)


def beside_mixed(demand: ModelDemand, paths: LoadPaths) -> LoadPaths:
    """The load that is left to prefill and decode engines if mixed ones serve what they can."""
    left = np.ones_like(paths.requests)
    for needs, running in _mixed(demand, paths):
        if not isinstance(needs, UndecidedCapacity):
            left -= running.engines / np.maximum(needs, 1)
    return paths.scaled(np.clip(left, 0.0, 1.0))


def words_beside(
    demand: ModelDemand, paths: LoadPaths, roles: Sequence[Sequence[RolePool]]
) -> Iterator[tuple[Role, str]]:
    """Which running engines are in none of these pools, by the role that this concerns."""
    planned = [pools[0].option.role for pools in roles if pools]
    for needs, running in _mixed(demand, paths):
        words = _uncounted(running)
        if not isinstance(needs, UndecidedCapacity):
            can = agreeing(running.engines, "serves what it can", "serve what they can")
            words = f"{_engines(running)} {can}, and these engines the rest"
        yield from ((role, words) for role in planned)
    known = {
        (pool.option.role, pool.option.gpu_name, pool.option.gpus)
        for pools in roles
        for pool in pools
    }
    for each in demand.running:
        kind = (each.role, each.gpu_name, each.gpus)
        if not each.engines or kind in known:
            continue
        if each.role in planned:
            yield each.role, _uncounted(each)
        elif each.role is not Role.MIXED:  # those were named above
            yield from ((role, _uncounted(each)) for role in planned)


def _mixed(
    demand: ModelDemand, paths: LoadPaths
) -> Iterator[tuple[Counts | UndecidedCapacity, RunningEngines]]:
    """Mixed engines of a model whose plan is for a pair, and how many would serve all of it."""
    if Role.MIXED in demand.roles:
        return
    options = {
        (option.gpu_name, option.gpus): option
        for option in demand.options
        if option.role is Role.MIXED
    }
    for each in demand.running:
        if each.role is Role.MIXED and each.engines:
            option = options.get((each.gpu_name, each.gpus))
            unknown = UndecidedCapacity("its step times are not known")
            yield block_needs(option, paths, demand.base_mix) if option else unknown, each


def _engines(running: RunningEngines) -> str:
    engines = counted(running.engines, f"{running.role} engine")
    return f"{engines} of {running.gpus} x {running.gpu_name}"


def _uncounted(running: RunningEngines) -> str:
    uncounted = agreeing(
        running.engines,
        "serves it, too, and is not counted",
        "serve it, too, and are not counted",
    )
    return f"{_engines(running)} {uncounted}: how much is not known"
