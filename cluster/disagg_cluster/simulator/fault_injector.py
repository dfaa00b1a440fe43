"""Lets faults begin and end at their times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from disagg_cluster.simulator.cluster.cluster import SpecError
from disagg_cluster.simulator.cluster.event_queue import Agenda
from disagg_cluster.simulator.cluster.kv_transfer import KvTransfer
from disagg_cluster.simulator.faults import (
    Crash,
    FailingTransfer,
    Fault,
    LateRecords,
    LostRecords,
    Slow,
    SlowTransfer,
    Stuck,
    Throttled,
)
from disagg_cluster.simulator.process import Process
from disagg_cluster.simulator.server import Server

_NS = 1_000_000_000
_OnProcess = Callable[[Process], None]


class Faultline:
    """Brings faults upon servers and transfers.

    What befalls a process ends with it: the next one is well.
    """

    def __init__(self, agenda: Agenda, servers: Mapping[str, Server], transfer: KvTransfer) -> None:
        self._agenda = agenda
        self._servers = servers
        self._transfer = transfer

    def note(self, faults: Iterable[Fault]) -> None:
        """Note faults in the agenda; raises `SpecError` for one of an engine there is not."""
        for fault in faults:
            engine = getattr(fault, "engine", None)
            if engine is not None and engine not in self._servers:
                raise SpecError(f"a fault of {engine}, which is no engine")
            self._agenda.after(fault.at_seconds, partial(self._begin, fault))
            if not isinstance(fault, Crash | Stuck):
                end_seconds = fault.at_seconds + fault.for_seconds
                self._agenda.after(end_seconds, partial(self._end, fault))

    def _begin(self, fault: Fault) -> None:
        match fault:
            case Crash():
                self._servers[fault.engine].crash(fault.restart_after_seconds)
            case Stuck():
                until_ns = self._agenda.now_ns + round(fault.for_seconds * _NS)
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

    def _on(self, engine: str, act: _OnProcess) -> None:
        process = self._servers[engine].process
        if process is not None:
            act(process)


def _lose(ratio: float, process: Process) -> None:
    process.telemetry.channel.lost_ratio = ratio


def _delay(seconds: float, process: Process) -> None:
    process.telemetry.channel.late_seconds = seconds
