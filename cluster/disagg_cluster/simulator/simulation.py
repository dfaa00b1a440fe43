"""A cluster, a load and faults, combined and run in virtual time; feeds ledgers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from disagg_cluster.simulator.cluster.event_queue import (
    Event,
    EventQueue,
    RequestEnded,
    SimulatedPage,
)
from disagg_cluster.simulator.cluster.network import KvNetwork
from disagg_cluster.simulator.cluster.spec import ClusterSpec, Reporting
from disagg_cluster.simulator.fault import Fault, FaultTargets
from disagg_cluster.simulator.fault_injector import schedule_faults
from disagg_cluster.simulator.gpus import device
from disagg_cluster.simulator.load import Arrivals, Lengths, LoadOverTime
from disagg_cluster.simulator.request_flow import RequestFlow
from disagg_cluster.simulator.server import Server
from disagg_exporter.accounting import Ledger
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import SECOND_NS, Assignment, Device, DeviceSweep
from disagg_exporter.steps.messages import ControlMessage, MessageKind

_FIRST_PID = 1000


class Simulation:
    """A simulated cluster.

    All engines are ready at the start. The same arguments give exactly the same events.

    Args:
        cluster: The engines.
        shape: The load on them.
        lengths: How its requests differ.
        faults: The faults.
        reporting: What engines and devices report, and how often.
        seed: Seed of all randomness.
        start_ns: The time at the start, as if of CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        shape: LoadOverTime,
        *,
        lengths: Lengths | None = None,
        faults: Sequence[Fault] = (),
        reporting: Reporting | None = None,
        seed: int = 0,
        start_ns: int = 0,
    ) -> None:
        reporting = reporting or Reporting()
        self.cluster = cluster
        self._queue = queue = EventQueue(start_ns)
        transfer = KvNetwork(cluster.link, _chance(seed, "transfer"))
        self.request_flow = RequestFlow(cluster, queue, transfer, emit_ends=reporting.requests)
        self.servers: Mapping[str, Server] = {
            spec.name: Server(
                spec,
                _FIRST_PID * (number + 1),
                queue,
                reporting,
                self.request_flow,
                f"{seed} engine",
            )
            for number, spec in enumerate(cluster.engines)
        }
        self.request_flow.servers = self.servers
        self._devices = _devices(cluster)
        self._node_of_engine = {spec.name: spec.node for spec in cluster.engines}
        self._node_of_gpu = {gpu: spec.node for spec in cluster.engines for gpu in spec.gpus}
        for server in self.servers.values():
            server.start(ready_now=True)
        for node in self._devices:
            queue.every(reporting.sweep_seconds, partial(self._sweep, node), over=lambda: False)
        lengths = lengths or Lengths()
        self._arrivals = Arrivals(shape, lengths, _chance(seed, "load"), start_ns)
        self._draw()
        targets = FaultTargets(queue, self.servers, transfer, self.request_flow, self._arrivals)
        schedule_faults(faults, targets)

    @property
    def now_ns(self) -> int:
        """The current virtual time."""
        return self._queue.now_ns

    @property
    def actions(self) -> int:
        """Number of executed actions: a measure of the work done, for benchmarks."""
        return self._queue.actions

    @property
    def nodes(self) -> Mapping[str, tuple[Device, ...]]:
        """The stand-in GPUs of each node."""
        return self._devices

    def events(self, until_ns: int) -> Iterator[tuple[int, Event]]:
        """Run until then, and yield the reported events, in order of time; may be called again."""
        return self._queue.events(until_ns)

    def node_of(self, event: Event) -> str | None:
        """Return the node that receives an event; None for one that only the user sees."""
        match event:
            case ControlMessage():
                return self._node_of_engine[event.key.engine]
            case Assignment() | SimulatedPage():
                return self._node_of_engine[event.engine]
            case DeviceSweep():
                return self._node_of_gpu[event.readings[0].gpu]
            case RequestEnded():
                return None

    def spent_seconds(self, engine: str) -> float:
        """Return the GPU-seconds that an engine's steps have actually held: the ground truth.

        Steps under way are counted when they have ended.
        """
        server = self.servers[engine]
        return server.gpus.busy_ns * len(server.spec.gpus) / SECOND_NS

    def _draw(self) -> None:
        t_ns, request = self._arrivals.draw(self._queue.now_ns)

        def arrive() -> None:
            if request is not None:
                self.request_flow.arrive(request)
            self._draw()

        self._queue.at(t_ns, arrive)

    def _sweep(self, node: str) -> DeviceSweep:
        readings = [
            reading
            for server in self.servers.values()
            if server.spec.node == node
            for reading in server.read_gpus()
        ]
        return DeviceSweep(self._queue.now_ns, tuple(readings))


def _devices(cluster: ClusterSpec) -> dict[str, tuple[Device, ...]]:
    nodes: dict[str, list[Device]] = {}
    for spec in cluster.engines:
        devices = nodes.setdefault(spec.node, [])
        devices.extend(device(spec.gpu, gpu, len(devices) + n) for n, gpu in enumerate(spec.gpus))
    return {node: tuple(devices) for node, devices in nodes.items()}


def _chance(seed: int, what: str) -> random.Random:
    """Return a separate random source for each part, so that they do not affect each other."""
    return random.Random(f"{seed} {what}")


def drive(
    ledgers: Mapping[str, Ledger],
    simulation: Simulation,
    until_ns: int,
    *,
    watch: Callable[[int, Event], None] | None = None,
) -> None:
    """Run a simulation until then, and feed each node's events to its ledger.

    Ledgers advance once a second, and must know their devices (`add_devices`). `watch` also
    receives every event.
    """
    next_ns = simulation.now_ns + SECOND_NS
    for t_ns, event in simulation.events(until_ns):
        while next_ns <= t_ns:
            for ledger in ledgers.values():
                ledger.advance(next_ns)
            next_ns += SECOND_NS
        node = simulation.node_of(event)
        if node is not None and node in ledgers:
            feed(ledgers[node], event, t_ns)
        if watch is not None:
            watch(t_ns, event)
    for ledger in ledgers.values():
        ledger.advance(until_ns)


def add_devices(ledgers: Mapping[str, Ledger], simulation: Simulation) -> None:
    """Register each node's GPUs with its ledger from now on."""
    for node, ledger in ledgers.items():
        for each in simulation.nodes[node]:
            ledger.add_device(each, simulation.now_ns)


def feed(ledger: Ledger, event: Event, now_ns: int) -> None:
    """Feed one event to a ledger; it ignores pages and the ends of requests."""
    match event:
        case ControlMessage(kind=MessageKind.STEP, step=step) if step is not None:
            ledger.step(event.key, step, now_ns=now_ns)
        case ControlMessage(step=step) if step is not None:
            ledger.heartbeat(
                event.key,
                step,
                overlapped=bool(event.flags & wire.OVERLAPPED),
                in_flight=event.in_flight,
                now_ns=now_ns,
            )
        case Assignment():
            ledger.assign(event)
        case DeviceSweep():
            ledger.read(event)
