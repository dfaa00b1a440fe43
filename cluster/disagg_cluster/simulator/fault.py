"""What a fault is, and what it can befall. Times are seconds after the start of the simulation."""

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
        """The engine that works on a GPU."""
        servers = self.servers.values()
        return next((server for server in servers if gpu in server.spec.gpus), None)


@dataclass(frozen=True, slots=True)
class Fault(ABC):
    """Something that goes wrong at a time."""

    at_seconds: float

    @property
    def end_seconds(self) -> float | None:
        """When it is to be ended; None if it ends by itself."""
        return None

    @abstractmethod
    def begin(self, targets: FaultTargets) -> None:
        """Let it begin."""

    def end(self, targets: FaultTargets) -> None:  # noqa: B027 - most that end by themselves do nothing
        """Let it end."""


@dataclass(frozen=True, slots=True)
class LastingFault(Fault):
    """Something that is wrong for a while."""

    for_seconds: float

    @property
    def end_seconds(self) -> float | None:
        """When all is as it was."""
        return self.at_seconds + self.for_seconds

    def begin(self, targets: FaultTargets) -> None:
        """Let it begin."""
        self.apply(targets, on=True)

    def end(self, targets: FaultTargets) -> None:
        """Let all be as it was."""
        self.apply(targets, on=False)

    @abstractmethod
    def apply(self, targets: FaultTargets, *, on: bool) -> None:
        """Change what it changes, or change it back."""
