"""What two pools of one model need in each future, in engines that could be of either."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.plan.worker_option import Counts
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class RoleSplit:
    """Engines that prefill and engines that decode."""

    prefill: int
    decode: int

    @property
    def engines(self) -> int:
        """Of both."""
        return self.prefill + self.decode

    def of(self, role: Role) -> int:
        """Those of one role."""
        return self.prefill if role is Role.PREFILL else self.decode

    def moved(self, to_decode: int) -> RoleSplit:
        """With so many prefill engines that decode instead; below 0 the other way."""
        return RoleSplit(self.prefill - to_decode, self.decode + to_decode)

    def without(self, to_decode: int) -> RoleSplit:
        """Less the engine that leaves prefill for decode; below 0 the other way."""
        if to_decode > 0:
            return RoleSplit(self.prefill - 1, self.decode)
        return RoleSplit(self.prefill, self.decode - 1)

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.prefill} prefill + {self.decode} decode"


@dataclass(frozen=True, slots=True, eq=False)
class SplitNeeds:
    """Engines that each pool needs by itself, `[future, block]`, blocks of `block_seconds`.

    `step_floor`: of the step of a full decode engine, the part that does not shrink with its
    batch; 1 where that is not known.
    """

    prefill: Counts
    decode: Counts
    block_seconds: float
    step_floor: float = 1.0

    def of(self, role: Role) -> Counts:
        """Those of one role."""
        return self.prefill if role is Role.PREFILL else self.decode

    @property
    def blocks(self) -> int:
        """How many blocks the futures have."""
        return int(self.prefill.shape[1])

    def within(self, seconds: float) -> SplitNeeds:
        """The same, no further ahead than so many seconds."""
        blocks = max(1, math.ceil(seconds / self.block_seconds))
        return replace(self, prefill=self.prefill[:, :blocks], decode=self.decode[:, :blocks])

    def missed(self, split: RoleSplit) -> Floats:
        """Engines that a split lacks in each block, in the mean of the futures."""
        lacking: Floats = np.maximum(self.prefill - split.prefill, 0) + np.maximum(
            self.decode - split.decode, 0
        )
        found: Floats = lacking.mean(axis=0)
        return found

    def over_target(self, split: RoleSplit) -> Floats:
        """The share of futures in which a split has too few of either, in each block."""
        short = (self.prefill > split.prefill) | (self.decode > split.decode)
        found: Floats = short.mean(axis=0)
        return found
