"""Faults of an engine's limits: steps, batches and caches too small or too large.

As if it had been started with other options; here they change while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.simulator.engine.batch import SchedulerLimits
from disagg_cluster.simulator.fault import FaultTargets, LastingFault
from disagg_cluster.simulator.process import EngineProcess


@dataclass(frozen=True, slots=True)
class Resized(LastingFault):
    """An engine has other limits; None leaves one as it is. `kv_ratio` scales its cache."""

    engine: str
    step_tokens: int | None = None
    running_requests: int | None = None
    kv_ratio: float | None = None
    reserved_output_tokens: int | None = None

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Set these limits, or its own again."""

        def resize(process: EngineProcess) -> None:
            own = process.spec.limits()
            process.resize(self._changed(own) if on else own)

        targets.on_process(self.engine, resize)

    def _changed(self, own: SchedulerLimits) -> SchedulerLimits:
        changes = {
            "step_tokens": self.step_tokens,
            "running_requests": self.running_requests,
            "kv_blocks": None if self.kv_ratio is None else round(own.kv_blocks * self.kv_ratio),
            "reserved_output_tokens": self.reserved_output_tokens,
        }
        return replace(own, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True)
class NoPrefixCaching(LastingFault):
    """An engine finds nothing of a prompt in its cache, as if started without prefix caching."""

    engine: str

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Switch it off."""
        targets.on_process(self.engine, lambda process: process.reuse_prefixes(on=not on))
