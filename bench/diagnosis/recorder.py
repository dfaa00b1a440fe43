"""Scrapes the nodes of a simulated cluster in virtual time, as Prometheus would.

The pages are those of the real node code, used as rows before rendering: a test checks that these
equal the samples of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import merge

import numpy as np
from prometheus_client.utils import floatToGoString

from disagg_cluster.planner.diagnose.evidence.series_window import (
    Floats,
    ScrapedSeries,
    SeriesWindow,
)
from disagg_cluster.simulator.cluster.event_queue import RequestEnded
from disagg_cluster.simulator.simulation import Simulation
from disagg_cluster.telemetry.pages.front_tally import FrontTally
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.fronts import parse_front_page
from disagg_exporter.metrics.family import Labels, MetricRows
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import FrontCounts, GpuPrice, Histogram, Role
from support.simulated_node import SECOND_NS, LearnedEngineCosts, SimulatedNode

_LABELS = {family.name: family.labels for family in FAMILIES}
_PORT = 9847
_PARTS = ("_bucket", "_sum", "_count")


@dataclass(slots=True, eq=False)
class _Samples:
    """One growing series."""

    labels: dict[str, str]
    room: int
    count: int = 0
    times: Floats = field(init=False)
    values: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.times = np.empty(self.room)
        self.values = np.empty(self.room)

    def add(self, t_seconds: float, value: float) -> None:
        """Append a sample."""
        self.times[self.count] = t_seconds
        self.values[self.count] = value
        self.count += 1

    def so_far(self) -> ScrapedSeries:
        """The series up to now; later samples do not change it."""
        count = self.count
        return ScrapedSeries(self.labels, self.times[:count], self.values[:count])


class _OfLabels(dict[str, _Samples]):
    """The series of one set of labels by name, and histogram buckets by name and bound."""

    def __init__(
        self, labels: dict[str, str], new: Callable[[str, dict[str, str]], _Samples]
    ) -> None:
        super().__init__()
        self._labels = {name: str(value) for name, value in labels.items()}
        self._new = new
        self._buckets: dict[str, _Samples] = {}

    def __missing__(self, name: str) -> _Samples:
        made = self[name] = self._new(name, self._labels)
        return made

    def at(self, name: str, bound: str) -> _Samples:
        """The bucket with this upper bound."""
        if bound not in self._buckets:
            self._buckets[bound] = self._new(name, {**self._labels, "le": bound})
        return self._buckets[bound]


class ScrapedPages:
    """The series of all nodes' pages.

    Args:
        cluster: The cluster's name in the scrape.
        scrapes: The largest number of scrapes of a node.
        families: Names of the series to keep; None for all.
    """

    def __init__(self, cluster: str, scrapes: int, families: frozenset[str] | None = None) -> None:
        self._cluster = cluster
        self._scrapes = scrapes
        self._families = families
        self._series: dict[str, list[_Samples]] = {}
        self._known: dict[tuple[str, str, Labels], _OfLabels] = {}

    def ingest(self, node: str, rows: MetricRows, t_seconds: float) -> None:
        """Add the rows of a node's page, as scraped at this Unix time."""
        for name, samples in rows.samples.items():
            if self._is_kept(name):
                for labels, value in samples.items():
                    self._of(node, name, labels)[name].add(t_seconds, value)
        for name, histograms in rows.histograms.items():
            if any(self._is_kept(name + part) for part in _PARTS):
                for labels, histogram in histograms.items():
                    self._ingest_histogram(self._of(node, name, labels), name, histogram, t_seconds)

    def window(self, begin_seconds: float, now_seconds: float) -> SeriesWindow:
        """All series up to now."""
        families = {
            name: tuple(one.so_far() for one in series) for name, series in self._series.items()
        }
        return SeriesWindow(begin_seconds, now_seconds, families)

    def _is_kept(self, name: str) -> bool:
        return self._families is None or name in self._families

    def _ingest_histogram(
        self, known: _OfLabels, name: str, histogram: Histogram, t_seconds: float
    ) -> None:
        bounds = (*map(floatToGoString, histogram.bounds), "+Inf")
        if self._is_kept(name + "_bucket"):
            for bound, count in zip(bounds, histogram.counts, strict=True):
                known.at(name + "_bucket", bound).add(t_seconds, count)
        for part, value in (("_sum", histogram.sum), ("_count", histogram.total)):
            if self._is_kept(name + part):
                known[name + part].add(t_seconds, value)

    def _of(self, node: str, name: str, labels: Labels) -> _OfLabels:
        key = (node, name, labels)
        known = self._known.get(key)
        if known is None:
            scraped = {"cluster": self._cluster, "node": node, "instance": f"{node}:{_PORT}"}
            scraped |= {"job": "disagg-node", **dict(zip(_LABELS[name], labels, strict=True))}
            known = self._known[key] = _OfLabels(scraped, self._new)
        return known

    def _new(self, name: str, labels: dict[str, str]) -> _Samples:
        samples = _Samples(labels, self._scrapes)
        self._series.setdefault(name, []).append(samples)
        return samples


_Action = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Scraping:
    """Intervals of scrapes and of the daemons' work.

    `fronts`: nodes whose daemon reads the frontend's page. `books_energy`, `gpu_price` and
    `by_page` are as in `SimulatedNode`.
    """

    scrape_seconds: float = 15.0
    page_seconds: float = 5.0
    advance_seconds: float = 5.0
    fronts: tuple[str, ...] = ()
    cluster: str = "sim"
    itl_seconds: float = 0.05
    books_energy: bool = False
    gpu_price: GpuPrice | None = None
    by_page: bool = False


class Recorder:
    """Runs a simulation with the accounting of its nodes, and scrapes their pages.

    Args:
        simulation: The simulation; its engines' pages are events of it.
        scraping: The intervals.
        wall_offset_seconds: Offset from its time to Unix time.
        end_seconds: The latest end, after its start.
        families: Names of the series to keep; None for all.
        learned: What nodes have already learned about their engines, by role.
    """

    def __init__(
        self,
        simulation: Simulation,
        scraping: Scraping,
        *,
        wall_offset_seconds: float,
        end_seconds: float,
        families: frozenset[str] | None = None,
        learned: Mapping[Role, LearnedEngineCosts] | None = None,
    ) -> None:
        self.ended: list[RequestEnded] = []
        self._simulation = simulation
        self._scraping = scraping
        self._offset_seconds = wall_offset_seconds
        self._start_ns = simulation.now_ns
        self._end_seconds = end_seconds
        self._nodes = {
            name: SimulatedNode(
                name,
                simulation,
                itl_seconds=scraping.itl_seconds,
                wall_offset_seconds=wall_offset_seconds,
                books_energy=scraping.books_energy,
                learned=learned,
                gpu_price=scraping.gpu_price,
                by_page=scraping.by_page,
            )
            for name in simulation.nodes
        }
        self._tally = FrontTally("frontend:8000", interval_seconds=scraping.page_seconds)
        self._keys = SeriesKeys()
        scrapes = int(end_seconds / scraping.scrape_seconds) + 2
        self._pages = ScrapedPages(scraping.cluster, scrapes, families)

    def rounds(self, every_seconds: float) -> Iterator[SeriesWindow]:
        """Run to the end, and yield all scraped series at regular intervals."""
        start_ns, clock, scraping = self._start_ns, self._simulation, self._scraping
        events = merge(
            self._every(scraping.advance_seconds, self._advance, 0),
            self._every(scraping.page_seconds, self._read_front, 1),
            *(
                self._every(scraping.scrape_seconds, partial(self._scrape, node), 2 + n, offset)
                for n, (node, offset) in enumerate(self._offsets().items())
            ),
            self._every(every_seconds, None, 99),
        )
        for t_ns, _, _, action in events:
            for now_ns, event in clock.events(start_ns + t_ns):
                node = clock.node_of(event)
                if node is not None:
                    self._nodes[node].hear(event, now_ns)
                elif isinstance(event, RequestEnded):
                    self.ended.append(event)
            if action is not None:
                action(clock.now_ns)
            else:
                yield self._pages.window(self._unix(start_ns), self._unix(clock.now_ns))

    def _every(
        self, seconds: float, action: _Action | None, order: int, offset_seconds: float = 0.0
    ) -> Iterator[tuple[int, int, int, _Action | None]]:
        """Times of an action, with its order among simultaneous ones, its number, and itself."""
        count = int((self._end_seconds - offset_seconds) / seconds)
        for number in range(1, count + 1):
            t_ns = round((number * seconds + offset_seconds) * SECOND_NS)
            yield t_ns, order, number, action

    def _offsets(self) -> dict[str, float]:
        """Offset of each node's scrapes: Prometheus spreads its targets over the interval."""
        nodes, interval = list(self._nodes), self._scraping.scrape_seconds
        return {node: -interval * (n + 0.5) / len(nodes) for n, node in enumerate(nodes)}

    def _advance(self, now_ns: int) -> None:
        fronts = self._fronts(now_ns)
        for name, node in self._nodes.items():
            node.advance(now_ns)
            node.count_requests(fronts if name in self._scraping.fronts else (), now_ns)

    def _fronts(self, now_ns: int) -> tuple[FrontCounts, ...]:
        return (self._tally.counts(now_ns),)

    def _read_front(self, now_ns: int) -> None:
        text = self._simulation.request_flow.front.render()
        self._tally.ingest(parse_front_page(text.encode(), now_ns, self._keys), now_ns)

    def _scrape(self, node: str, now_ns: int) -> None:
        rows = rows_of(self._nodes[node].snapshot(now_ns), now_ns)
        self._pages.ingest(node, rows, self._unix(now_ns))

    def _unix(self, now_ns: int) -> float:
        return now_ns / SECOND_NS + self._offset_seconds
