"""Faults of an engine's process: it dies, hangs, slows down, or its reports are lost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from disagg_cluster.simulator.engine.engine import Engine
from disagg_cluster.simulator.fault import Fault, FaultTargets, LastingFault
from disagg_cluster.simulator.process import EngineProcess
from disagg_exporter.model import SECOND_NS


@dataclass(frozen=True, slots=True)
class Crash(Fault):
    """An engine's process dies; the next one starts after a delay, None: never."""

    engine: str
    restart_after_seconds: float | None = 1.0

    def begin(self, targets: FaultTargets) -> None:
        """Kill it."""
        targets.servers[self.engine].crash(self.restart_after_seconds)


@dataclass(frozen=True, slots=True)
class Stuck(LastingFault):
    """An engine hangs: no step ends, while its server still answers and sends heartbeats.

    Its GPUs look busy if it hung inside a step, as when a collective waits for ever.
    """

    engine: str

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Make it hang; it resumes without a further action."""
        if on:
            until_ns = targets.queue.now_ns + round(self.for_seconds * SECOND_NS)
            targets.on_process(self.engine, lambda process: process.stall(until_ns))


@dataclass(frozen=True, slots=True)
class Slow(LastingFault):
    """An engine takes `factor` times as long for each step, with no visible reason."""

    engine: str
    factor: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Lengthen its steps."""
        factor = self.factor if on else 1.0

        def change(engine: Engine) -> None:
            engine.slowdowns.sick = factor

        targets.on_process(self.engine, lambda process: process.change(change))


@dataclass(frozen=True, slots=True)
class SlowMixedSteps(LastingFault):
    """Steps in which requests decode beside a prompt take `factor` times as long.

    As where such batches leave the captured graphs, or kernels are made for one phase only.
    """

    engine: str
    factor: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Lengthen them."""
        factor = self.factor if on else 1.0

        def change(engine: Engine) -> None:
            engine.slowdowns.mixed = factor

        targets.on_process(self.engine, lambda process: process.change(change))


@dataclass(frozen=True, slots=True)
class SlowHost(LastingFault):
    """The host takes `gap_seconds` before each step of an engine, in which GPUs idle."""

    engine: str
    gap_seconds: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Widen the gaps."""

        def put(process: EngineProcess) -> None:
            gap_seconds = self.gap_seconds if on else process.spec.gap_seconds

            def change(engine: Engine) -> None:
                engine.gap_seconds = gap_seconds

            process.change(change)

        targets.on_process(self.engine, put)


@dataclass(frozen=True, slots=True)
class LostRecords(LastingFault):
    """A share of an engine's step records is lost."""

    engine: str
    ratio: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Lose them."""
        targets.on_process(self.engine, partial(_lose, self.ratio if on else 0.0))


@dataclass(frozen=True, slots=True)
class LateRecords(LastingFault):
    """All reports of an engine arrive late."""

    engine: str
    late_seconds: float

    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Delay them."""
        targets.on_process(self.engine, partial(_delay, self.late_seconds if on else 0.0))


def _lose(ratio: float, process: EngineProcess) -> None:
    process.telemetry.link.lost_ratio = ratio


def _delay(seconds: float, process: EngineProcess) -> None:
    process.telemetry.link.late_seconds = seconds
