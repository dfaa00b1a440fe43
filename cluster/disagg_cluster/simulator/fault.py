"""Faults and their targets. Times are seconds after the start of the simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from disagg_cluster.simulator.cluster.event_queue import EventQueue
from disagg_cluster.simulator.cluster.network import KvNetwork
from disagg_cluster.simulator.load import Arrivals
from disagg_cluster.simulator.process import EngineProcess
from disagg_cluster.simulator.request_flow import RequestFlow
from disagg_cluster.simulator.server import Server


@dataclass(frozen=True, slots=True)
class FaultTargets:
    """Everything of a simulation that a fault can change."""

    queue: EventQueue
    servers: Mapping[str, Server]
    network: KvNetwork
    request_flow: RequestFlow
    arrivals: Arrivals

    def on_process(self, engine: str, change: Callable[[EngineProcess], None]) -> None:
        """Change an engine's process, if it has one."""
        process = self.servers[engine].process
        if process is not None:
            change(process)

    def server_of(self, gpu: str) -> Server | None:
        """Return the engine that uses a GPU."""
        servers = self.servers.values()
        return next((server for server in servers if gpu in server.spec.gpus), None)


@dataclass(frozen=True, slots=True)
class Fault(ABC):
    """Something that goes wrong at a given time."""

    at_seconds: float

    @property
    def end_seconds(self) -> float | None:
        """When `end` is to be called; None if it ends without."""
        return None

    @abstractmethod
    def begin(self, targets: FaultTargets) -> None:
        """Begin the fault."""

    def end(self, targets: FaultTargets) -> None:  # noqa: B027 - most need no action
        """End the fault."""


@dataclass(frozen=True, slots=True)
class LastingFault(Fault):
    """Something that is wrong for a while."""

    for_seconds: float

    @property
    def end_seconds(self) -> float | None:
        """When it is over."""
        return self.at_seconds + self.for_seconds

    def begin(self, targets: FaultTargets) -> None:
        """Begin the fault."""
        self.apply(targets, on=True)

    def end(self, targets: FaultTargets) -> None:
        """Restore the normal state."""
        self.apply(targets, on=False)

    @abstractmethod
    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Apply the change, or undo it."""
