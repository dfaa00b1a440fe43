"""Needs of the two pools of one model in each future, in interchangeable engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.plan.worker_option import Counts
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class RoleSplit:
    """Numbers of prefill and decode engines."""

    prefill: int
    decode: int

    @property
    def engines(self) -> int:
        """Total number of engines."""
        return self.prefill + self.decode

    def of(self, role: Role) -> int:
        """Engines of one role."""
        return self.prefill if role is Role.PREFILL else self.decode

    def moved(self, to_decode: int) -> RoleSplit:
        """The split after `to_decode` moves from prefill to decode; negative: the other way."""
        return RoleSplit(self.prefill - to_decode, self.decode + to_decode)

    def without(self, to_decode: int) -> RoleSplit:
        """The split without an engine moving from prefill to decode; negative: the other way."""
        if to_decode > 0:
            return RoleSplit(self.prefill - 1, self.decode)
        return RoleSplit(self.prefill, self.decode - 1)

    def __str__(self) -> str:
        """Format for people."""
        return f"{self.prefill} prefill + {self.decode} decode"


@dataclass(frozen=True, slots=True, eq=False)
class SplitNeeds:
    """Engines that each pool needs, `[future, block]`, with blocks of `block_seconds`.

    `step_floor` is the share of a full decode engine's step that does not shrink with its batch;
    1 if unknown.
    """

    prefill: Counts
    decode: Counts
    block_seconds: float
    step_floor: float = 1.0

    def of(self, role: Role) -> Counts:
        """Needs of one role."""
        return self.prefill if role is Role.PREFILL else self.decode

    @property
    def blocks(self) -> int:
        """Number of blocks of each future."""
        return int(self.prefill.shape[1])

    def within(self, seconds: float) -> SplitNeeds:
        """The same, limited to the next `seconds`."""
        blocks = max(1, math.ceil(seconds / self.block_seconds))
        return replace(self, prefill=self.prefill[:, :blocks], decode=self.decode[:, :blocks])

    def missed(self, split: RoleSplit) -> Floats:
        """Engines that a split lacks in each block, as a mean over the futures."""
        lacking: Floats = np.maximum(self.prefill - split.prefill, 0) + np.maximum(
            self.decode - split.decode, 0
        )
        found: Floats = lacking.mean(axis=0)
        return found

    def over_target(self, split: RoleSplit) -> Floats:
        """Share of futures in which a split has too few engines of a role, for each block."""
        short = (self.prefill > split.prefill) | (self.decode > split.decode)
        found: Floats = short.mean(axis=0)
        return found
