"""Faults of KV transfers."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.simulator.fault import FaultTargets, LastingFault


@dataclass(frozen=True, slots=True)
class SlowTransfer(LastingFault):
    """KV transfers take `factor` times as long: all, or those from or to one engine."""

    factor: float
    engine: str | None = None

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Slow the links."""
        targets.network.slow_down(self.engine, self.factor if on else 1.0)


@dataclass(frozen=True, slots=True)
class FailingTransfer(LastingFault):
    """A share of KV transfers fails; the decode engine computes those prompts itself."""

    ratio: float
    engine: str | None = None

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Make them fail."""
        targets.network.let_fail(self.engine, self.ratio if on else 0.0)
