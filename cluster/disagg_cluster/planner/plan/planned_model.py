"""A model while its plan is made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.plan.role_pool import RolePool, overflow_engines
from disagg_cluster.planner.plan.worker_option import Counts


@dataclass(slots=True, eq=False)
class PlannedModel:
    """A model's pools by role, and the engines that each of them is granted by block."""

    demand: ModelDemand
    paths: LoadPaths
    roles: list[list[RolePool]]
    granted: list[list[Counts]]

    @property
    def pools(self) -> list[tuple[RolePool, Counts]]:
        """All pools with their engines."""
        return [
            pair
            for pools, counts in zip(self.roles, self.granted, strict=True)
            for pair in zip(pools, counts, strict=True)
        ]

    def cut(self, blocks: int) -> None:
        """Cut the horizon to this many blocks."""
        self.roles = [
            [
                replace(
                    pool,
                    needs=pool.needs[:, :blocks],
                    needed=pool.needed[:blocks],
                    keep=pool.keep[:blocks],
                )
                for pool in pools
            ]
            for pools in self.roles
        ]

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
