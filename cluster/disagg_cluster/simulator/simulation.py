"""A cluster, a load and faults, put together and run in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from disagg_cluster.simulator.cluster.cluster import ClusterSpec, Telling
from disagg_cluster.simulator.cluster.event_queue import Agenda
from disagg_cluster.simulator.cluster.events import Event, PageText, RequestEnded
from disagg_cluster.simulator.cluster.kv_transfer import KvTransfer
from disagg_cluster.simulator.fault_injector import Faultline
from disagg_cluster.simulator.faults import Fault
from disagg_cluster.simulator.gpus import device
from disagg_cluster.simulator.load import Arrivals, Lengths, Shape
from disagg_cluster.simulator.request_flow import Journeys
from disagg_cluster.simulator.server import Server
from disagg_exporter.model import Assignment, Device, DeviceSweep
from disagg_exporter.steps.messages import Message

_NS = 1_000_000_000
_FIRST_PID = 1000


class Simulation:
    """A simulated cluster.

    All engines are ready at the start. The same arguments give the same events, to the byte.

    Args:
        cluster: The engines.
        shape: The load on them.
        lengths: How its requests differ.
        faults: What goes wrong.
        telling: What is told, and how often.
        seed: Of all that is left to chance.
        start_ns: The time at the start, as if of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        shape: Shape,
        *,
        lengths: Lengths | None = None,
        faults: Sequence[Fault] = (),
        telling: Telling | None = None,
        seed: int = 0,
        start_ns: int = 0,
    ) -> None:
        telling = telling or Telling()
        self.cluster = cluster
        self._agenda = agenda = Agenda(start_ns)
        transfer = KvTransfer(cluster.link, _chance(seed, "transfer"))
        self.journeys = Journeys(cluster, agenda, transfer, tell=telling.requests)
        self.servers: Mapping[str, Server] = {
            spec.name: Server(
                spec,
                _FIRST_PID * (number + 1),
                agenda,
                telling,
                self.journeys,
                f"{seed} engine",
            )
            for number, spec in enumerate(cluster.engines)
        }
        self.journeys.servers = self.servers
        self._devices = _devices(cluster)
        self._node_of_engine = {spec.name: spec.node for spec in cluster.engines}
        self._node_of_gpu = {gpu: spec.node for spec in cluster.engines for gpu in spec.gpus}
        for server in self.servers.values():
            server.start(ready_now=True)
        for node in self._devices:
            agenda.every(telling.sweep_seconds, partial(self._sweep, node), over=lambda: False)
        lengths = lengths or Lengths()
        self._arrivals = Arrivals(shape, lengths, _chance(seed, "load"), start_ns)
        self._draw()
        Faultline(agenda, self.servers, transfer).note(faults)

    @property
    def now_ns(self) -> int:
        """The time that has been reached."""
        return self._agenda.now_ns

    @property
    def acts(self) -> int:
        """How much has happened inside: a measure of the work done, for benchmarks."""
        return self._agenda.acts

    @property
    def nodes(self) -> Mapping[str, tuple[Device, ...]]:
        """The stand-in GPUs of each node."""
        return self._devices

    def events(self, until_ns: int) -> Iterator[tuple[int, Event]]:
        """Run until then, and yield what is told, in order of time; may be called again."""
        return self._agenda.events(until_ns)

    def node_of(self, event: Event) -> str | None:
        """The node on which an event is heard; None for one that only the user sees."""
        match event:
            case Message():
                return self._node_of_engine[event.key.engine]
            case Assignment() | PageText():
                return self._node_of_engine[event.engine]
            case DeviceSweep():
                return self._node_of_gpu[event.readings[0].gpu]
            case RequestEnded():
                return None

    def spent_seconds(self, engine: str) -> float:
        """GPU-seconds that the steps of an engine have really held: the truth to compare with.

        Those of the steps that are under way are counted when they have ended.
        """
        server = self.servers[engine]
        return server.gpus.busy_ns * len(server.spec.gpus) / _NS

    def _draw(self) -> None:
        t_ns, request = self._arrivals.draw(self._agenda.now_ns)

        def arrive() -> None:
            if request is not None:
                self.journeys.arrive(request)
            self._draw()

        self._agenda.at(t_ns, arrive)

    def _sweep(self, node: str) -> DeviceSweep:
        readings = [
            reading
            for server in self.servers.values()
            if server.spec.node == node
            for reading in server.read_gpus()
        ]
        return DeviceSweep(self._agenda.now_ns, tuple(readings))


def _devices(cluster: ClusterSpec) -> dict[str, tuple[Device, ...]]:
    nodes: dict[str, list[Device]] = {}
    for spec in cluster.engines:
        devices = nodes.setdefault(spec.node, [])
        devices.extend(device(spec.gpu, gpu, len(devices) + n) for n, gpu in enumerate(spec.gpus))
    return {node: tuple(devices) for node, devices in nodes.items()}


def _chance(seed: int, what: str) -> random.Random:
    """A source of chance of its own for each part, so that one does not disturb the others."""
    return random.Random(f"{seed} {what}")
