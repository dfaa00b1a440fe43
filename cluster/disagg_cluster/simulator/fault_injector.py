"""Faults of a simulation, and what lets them begin and end at their times.

Times are seconds after the start of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from disagg_cluster.simulator.cluster.event_queue import EventQueue
from disagg_cluster.simulator.cluster.network import KvNetwork
from disagg_cluster.simulator.cluster.spec import SpecError
from disagg_cluster.simulator.process import EngineProcess
from disagg_cluster.simulator.server import Server


@dataclass(frozen=True, slots=True)
class Crash:
    """An engine's process dies; the next one starts so much later, None: never."""

    at_seconds: float
    engine: str
    restart_after_seconds: float | None = 1.0


@dataclass(frozen=True, slots=True)
class Stuck:
    """An engine hangs: no step ends, while its server still answers and beats.

    Its GPUs look busy if it hung inside a step, as they do when a collective waits for ever.
    """

    at_seconds: float
    for_seconds: float
    engine: str


@dataclass(frozen=True, slots=True)
class Slow:
    """An engine takes `factor` times as long for each step."""

    at_seconds: float
    for_seconds: float
    engine: str
    factor: float


@dataclass(frozen=True, slots=True)
class LostRecords:
    """A part of an engine's step records does not get through."""

    at_seconds: float
    for_seconds: float
    engine: str
    ratio: float


@dataclass(frozen=True, slots=True)
class LateRecords:
    """All that an engine reports arrives late."""

    at_seconds: float
    for_seconds: float
    engine: str
    late_seconds: float


@dataclass(frozen=True, slots=True)
class SlowTransfer:
    """All KV transfers take `factor` times as long."""

    at_seconds: float
    for_seconds: float
    factor: float


@dataclass(frozen=True, slots=True)
class FailingTransfer:
    """A part of all KV transfers fails; the decode engine computes those prompts itself."""

    at_seconds: float
    for_seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Throttled:
    """A GPU runs at `clock_ratio` of its clock: too hot, or short of power."""

    at_seconds: float
    for_seconds: float
    gpu: str
    clock_ratio: float


Fault = (
    Crash | Stuck | Slow | LostRecords | LateRecords | SlowTransfer | FailingTransfer | Throttled
)


_NS = 1_000_000_000
_OnProcess = Callable[[EngineProcess], None]


class FaultInjector:
    """Brings faults upon servers and transfers.

    What befalls a process ends with it: the next one is well.
    """

    def __init__(
        self, queue: EventQueue, servers: Mapping[str, Server], transfer: KvNetwork
    ) -> None:
        self._queue = queue
        self._servers = servers
        self._transfer = transfer

    def schedule(self, faults: Iterable[Fault]) -> None:
        """Note faults in the queue; raises `SpecError` for one of an engine there is not."""
        for fault in faults:
            engine = getattr(fault, "engine", None)
            if engine is not None and engine not in self._servers:
                raise SpecError(f"a fault of {engine}, which is no engine")
            self._queue.after(fault.at_seconds, partial(self._begin, fault))
            if not isinstance(fault, Crash | Stuck):
                end_seconds = fault.at_seconds + fault.for_seconds
                self._queue.after(end_seconds, partial(self._end, fault))

    def _begin(self, fault: Fault) -> None:
        match fault:
            case Crash():
                self._servers[fault.engine].crash(fault.restart_after_seconds)
            case Stuck():
                until_ns = self._queue.now_ns + round(fault.for_seconds * _NS)
                self._on(fault.engine, lambda process: process.stall(until_ns))
            case _:
                self._set(fault, on=True)

    def _end(self, fault: Fault) -> None:
        self._set(fault, on=False)

    def _set(self, fault: Fault, *, on: bool) -> None:
        match fault:
            case Slow():
                factor = fault.factor if on else 1.0
                self._on(fault.engine, lambda process: process.slow_down(factor))
            case LostRecords():
                self._on(fault.engine, partial(_lose, fault.ratio if on else 0.0))
            case LateRecords():
                self._on(fault.engine, partial(_delay, fault.late_seconds if on else 0.0))
            case SlowTransfer():
                self._transfer.slowdown = fault.factor if on else 1.0
            case FailingTransfer():
                self._transfer.failing_ratio = fault.ratio if on else 0.0
            case Throttled():
                for server in self._servers.values():
                    if fault.gpu in server.spec.gpus:
                        server.throttle(fault.gpu, fault.clock_ratio if on else 1.0)

    def _on(self, engine: str, change: _OnProcess) -> None:
        process = self._servers[engine].process
        if process is not None:
            change(process)


def _lose(ratio: float, process: EngineProcess) -> None:
    process.telemetry.link.lost_ratio = ratio


def _delay(seconds: float, process: EngineProcess) -> None:
    process.telemetry.link.late_seconds = seconds
