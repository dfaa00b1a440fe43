"""A simulated cluster as known from its engines' pages, and what users observed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from disagg_cluster.simulator.cluster.event_queue import RequestEnded, SimulatedPage
from disagg_cluster.simulator.cluster.spec import ClusterSpec, Reporting
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.engine_pages.window import CumulativeCounts
from disagg_exporter.model import (
    SECOND_NS,
    EngineState,
    EngineStatus,
    FrontCounts,
    Histogram,
    RequestAccount,
    RequestAccounts,
    RequestSource,
    Role,
    ServingCounts,
)
from disagg_exporter.serving.requests import ModelRequests

PAGES = Reporting(single_steps=False, heartbeat_seconds=None, page_seconds=1.0, sweep_seconds=None)


def engine_status(
    name: str, role: Role, serving: ServingCounts | None, *, kind: str = "vllm", model: str = "m"
) -> EngineStatus:
    """Return the status of an engine of which only the counts matter."""
    facts = (name, role, kind, "", model, (), EngineState.READY)
    return EngineStatus(*facts, up=True, source="", confidence="", serving=serving)


@dataclass(slots=True)
class Served:
    """What is known of the requests, and what users observed, in seconds."""

    known: RequestAccounts
    arrived: int = 0
    first_tokens: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)

    def of(self, source: RequestSource) -> RequestAccount:
        """Return the account of the only model by one source."""
        return next(each for each in self.known.requests if each.source is source)


def late(histogram: Histogram, bound: float) -> float:
    """Return the share of observations above a bound of the histogram."""
    return 1 - histogram.counts[histogram.bounds.index(bound)] / histogram.total


def truly_late(seconds: Sequence[float], bound: float) -> float:
    """Return the same share of observed values."""
    return sum(value > bound for value in seconds) / len(seconds)


def serve(
    cluster: ClusterSpec, mix: Mix, lengths: Lengths, seconds: float, seed: int = 1
) -> Served:
    """Run a simulation, and ingest its engines' pages once a second."""
    simulation = Simulation(cluster, Constant(mix), lengths=lengths, reporting=PAGES, seed=seed)
    roles = {engine.name: engine.role for engine in cluster.engines}
    keys: defaultdict[str, SeriesKeys] = defaultdict(SeriesKeys)
    tallies: defaultdict[str, CumulativeCounts] = defaultdict(CumulativeCounts)
    counts, none = ModelRequests(), tuple[FrontCounts, ...]()
    served, looked_ns = Served(RequestAccounts()), 0
    for t_ns, event in simulation.events(round(seconds * SECOND_NS)):
        if isinstance(event, SimulatedPage):
            page = parse_page(event.text.encode(), t_ns, keys[event.engine])
            tallies[event.engine].ingest(page)
            if t_ns - looked_ns >= SECOND_NS:
                looked_ns = t_ns
                engines = [engine_status(n, roles[n], t.counts) for n, t in tallies.items()]
                counts.ingest(engines, none, t_ns)
        elif isinstance(event, RequestEnded) and event.first_token_ns is not None:
            arrived_ns = event.request.arrived_ns
            served.first_tokens.append((event.first_token_ns - arrived_ns) / SECOND_NS)
            served.durations.append((event.ended_ns - arrived_ns) / SECOND_NS)
    served.known = counts.accounts()
    served.arrived = len(served.first_tokens) + simulation.request_flow.under_way
    return served
