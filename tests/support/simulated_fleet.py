"""Nodes with simulated engines, served as real ones are: real books, real pages, real HTTP.

Each cluster is a simulation that has run for four minutes before anybody looks, so that what is
learned of its engines is known; from then on it keeps step with the clock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.prometheus.local_server import ScrapeTarget
from disagg_cluster.simulator.cluster.event_queue import Event, SimulatedPage
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, Reporting
from disagg_cluster.simulator.fault_injector import Fault
from disagg_cluster.simulator.load import LoadOverTime, Mix
from disagg_cluster.simulator.simulation import Simulation, add_devices, feed
from disagg_cluster.telemetry.snapshot import DeviceLook, compose, read_accounting
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.window import CumulativeCounts
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.http.server.node_site import node_site
from disagg_exporter.http.server.server import MetricsServer
from disagg_exporter.model import (
    Assignment,
    DeviceSweep,
    EnginePage,
    EngineState,
    EngineStatus,
    RequestAccounts,
    Role,
    Snapshot,
)
from disagg_exporter.steps.messages import ControlMessage, MessageKind

WARM_SECONDS = 200.0
SECOND_NS = 1_000_000_000
_REPORTING = Reporting(single_steps=False, page_seconds=5.0, sweep_seconds=1.0)
_TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Scene:
    """One cluster: its nodes with an engine each, its load, and what is wrong from the start."""

    name: str
    nodes: tuple[tuple[str, Role], ...]
    mix: Mix
    faults: tuple[Fault, ...] = ()

    def spec(self) -> ClusterSpec:
        """The engines: one a node, on one GPU."""
        return ClusterSpec(
            tuple(
                EngineSpec(engine_of(node), role, (gpu_of(node),), node=node)
                for node, role in self.nodes
            ),
            # KV that nobody fetches must not fill the cache while transfers fail.
            lease_seconds=20.0,
        )


@dataclass(frozen=True, slots=True)
class _Steady:
    """A load from the first moment on."""

    mix: Mix

    def rate(self, t_seconds: float) -> Mix:
        return self.mix


def engine_of(node: str) -> str:
    """The engine of a node."""
    return f"{node}-0"


def gpu_of(node: str) -> str:
    """The GPU of a node."""
    return f"GPU-{node}"


class _Node:
    """What the daemon of one node would know."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        self.name = name
        self.ledger = Ledger()
        add_devices({name: self.ledger}, simulation)
        self.snapshot: Snapshot | None = None
        self._devices = simulation.nodes[name]
        self._capacity_model = CapacityModel(0.05)
        self._assignment: Assignment | None = None
        self._page: EnginePage | None = None
        self._tally = CumulativeCounts()
        self._look = DeviceLook("sim")

    def hear(self, event: Event, now_ns: int) -> None:
        feed(self.ledger, event, now_ns)
        match event:
            case Assignment():
                self._assignment = event
            case SimulatedPage():
                self._page = parse_page(event.text.encode(), event.t_ns)
                self._tally.take(self._page)
            case DeviceSweep():
                self._look = DeviceLook("sim", event, 0.001, time.time())
            case ControlMessage(kind=MessageKind.STEP, step=step) if step is not None:
                self._capacity_model.step(event.key, step, overlapped=False)
            case ControlMessage(step=step) if step is not None:
                self._capacity_model.heartbeat(event.key, step)

    def advance(self, now_ns: int) -> None:
        self.ledger.advance(now_ns)
        self._capacity_model.advance(self._statuses(), now_ns, self._look.readings(now_ns))

    def compose(self, now_ns: int) -> None:
        engines = self._statuses()
        certain = Snapshot(
            taken_ns=now_ns,
            wall_offset_seconds=time.time() - now_ns / SECOND_NS,
            fresh_until_ns=now_ns,
            worker_states=tuple(WorkerState),
            collectors=(self._look.status(now_ns),),
            simulated=True,
        )
        self.snapshot = compose(
            certain,
            read_accounting(self.ledger, self._capacity_model, engines, now_ns),
            self.ledger.fast_gauges(now_ns),
            devices=self._devices,
            look=self._look,
            engines=engines,
            parents=lambda _pid: (),
            requests=RequestAccounts(),
        )

    def _statuses(self) -> tuple[EngineStatus, ...]:
        assigned = self._assignment
        if assigned is None:
            return ()
        return (
            EngineStatus(
                engine=assigned.engine,
                role=assigned.role,
                kind="vllm",
                version="0.32.0",
                model_name=assigned.model_name,
                devices=assigned.devices,
                state=assigned.state,
                up=assigned.state is EngineState.READY,
                source="config",
                confidence="certain",
                page=self._page,
                serving=self._tally.counts,
            ),
        )


class _Cluster:
    """One simulation and its nodes."""

    def __init__(self, scene: Scene, start_ns: int) -> None:
        load: LoadOverTime = _Steady(scene.mix)
        self._simulation = Simulation(
            scene.spec(), load, faults=scene.faults, reporting=_REPORTING, seed=7, start_ns=start_ns
        )
        self.nodes = {name: _Node(name, self._simulation) for name, _ in scene.nodes}
        self._next_ns = start_ns

    def run(self, until_ns: int) -> None:
        for t_ns, event in self._simulation.events(until_ns):
            self._advance(t_ns)
            node = self._simulation.node_of(event)
            if node is not None:
                self.nodes[node].hear(event, t_ns)
        self._advance(until_ns)
        for known in self.nodes.values():
            known.compose(until_ns)

    def _advance(self, now_ns: int) -> None:
        while self._next_ns <= now_ns:
            for node in self.nodes.values():
                node.advance(self._next_ns)
            self._next_ns += SECOND_NS


@contextlib.contextmanager
def fleet(scenes: Sequence[Scene]) -> Iterator[list[ScrapeTarget]]:
    """Serve the pages of all nodes of all clusters; yield where."""
    clusters = {
        scene.name: _Cluster(scene, time.monotonic_ns() - round(WARM_SECONDS * SECOND_NS))
        for scene in scenes
    }
    for cluster in clusters.values():
        cluster.run(time.monotonic_ns())
    ending, failed = threading.Event(), []

    def keep_step() -> None:
        try:
            while not ending.wait(_TICK_SECONDS):
                for cluster in clusters.values():
                    cluster.run(time.monotonic_ns())
        except BaseException as error:
            failed.append(error)
            raise

    with contextlib.ExitStack() as stack:
        targets = [
            ScrapeTarget(stack.enter_context(_served(node)), node.name, name)
            for name, cluster in clusters.items()
            for node in cluster.nodes.values()
        ]
        thread = threading.Thread(target=keep_step, name="simulations")
        thread.start()
        try:
            yield targets
        finally:
            ending.set()
            thread.join()
        assert not failed


@contextlib.contextmanager
def _served(node: _Node) -> Iterator[str]:
    site = node_site(lambda: node.snapshot, lambda: "", lambda: 0.0)
    server = MetricsServer(ListenAddress("127.0.0.1", 0), site)
    address = server.start()
    try:
        yield f"127.0.0.1:{address.port}"
    finally:
        server.close()
