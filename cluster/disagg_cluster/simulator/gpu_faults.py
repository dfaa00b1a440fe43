"""Faults of GPUs: too hot, capped, or used by a foreign process."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.simulator.fault import Fault, FaultTargets, LastingFault
from disagg_cluster.simulator.gpus import ForeignProcess
from disagg_exporter.model import Throttle

_STRANGER_PID = 31_337


@dataclass(frozen=True, slots=True)
class Throttled(LastingFault):
    """A GPU runs at `clock_ratio` of its clock: too hot, or short of power.

    The others of its group wait for it: all take as long, each at its own power.
    """

    gpu: str
    clock_ratio: float
    reason: Throttle = Throttle.THERMAL

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Lower its clock."""
        server = targets.server_of(self.gpu)
        if server is not None:
            server.throttle(self.gpu, self.clock_ratio if on else 1.0, self.reason)


@dataclass(frozen=True, slots=True)
class StrangerOnGpu(LastingFault):
    """A foreign process permanently takes `sm_ratio` of a GPU's time, and some of its memory."""

    gpu: str
    sm_ratio: float
    memory_bytes: int = 2 * 10**9

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Add it, or remove it."""
        server = targets.server_of(self.gpu)
        if server is not None:
            came = ForeignProcess(_STRANGER_PID, self.sm_ratio, self.memory_bytes)
            server.share(self.gpu, came if on else None)


@dataclass(frozen=True, slots=True)
class MemoryErrors(Fault):
    """The memory of a GPU has so many corrected errors, once."""

    gpu: str
    errors: int

    def begin(self, targets: FaultTargets) -> None:
        """Count them."""
        server = targets.server_of(self.gpu)
        if server is not None:
            server.gpus.correct(self.gpu, self.errors)
