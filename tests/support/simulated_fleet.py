"""Nodes with simulated engines, served like real ones: real accounting, real pages, real HTTP.

Each cluster is a simulation that has run for four minutes before it is first scraped, so that its
engines' costs are learned; from then on it keeps pace with the clock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disagg_cluster.prometheus.local_server import ScrapeTarget
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, Reporting
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.load import LoadOverTime, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.http.server.node_site import node_site
from disagg_exporter.http.server.server import MetricsServer
from disagg_exporter.model import Role, Snapshot
from support.simulated_node import SECOND_NS, SimulatedNode

WARM_SECONDS = 200.0
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
            # KV that is never fetched must not fill the cache while transfers fail.
            lease_seconds=20.0,
        )


@dataclass(frozen=True, slots=True)
class _Steady:
    """A constant load from the start."""

    mix: Mix

    def rate(self, t_seconds: float) -> Mix:
        return self.mix


def engine_of(node: str) -> str:
    """Return the engine of a node."""
    return f"{node}-0"


def gpu_of(node: str) -> str:
    """Return the GPU of a node."""
    return f"GPU-{node}"


class _Node(SimulatedNode):
    """A node whose last snapshot is kept for scrapes."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        offset_seconds = time.time() - time.monotonic()
        super().__init__(name, simulation, wall_offset_seconds=offset_seconds)
        self.shown: Snapshot | None = None

    def compose(self, now_ns: int) -> None:
        self.shown = self.snapshot(now_ns)


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
    """Serve the pages of all nodes of all clusters; yield the targets."""
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
    site = node_site(lambda: node.shown, lambda: "", lambda: 0.0)
    server = MetricsServer(ListenAddress("127.0.0.1", 0), site)
    address = server.start()
    try:
        yield f"127.0.0.1:{address.port}"
    finally:
        server.close()
