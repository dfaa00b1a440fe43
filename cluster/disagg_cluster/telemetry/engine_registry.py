"""All engines of the node, launched and attached: one record each, for ledger and page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from disagg_cluster.telemetry.pages.engine_tls import EngineTlsClients, EngineTlsServer
from disagg_cluster.telemetry.pages.page_scraper import PageScraper
from disagg_cluster.telemetry.source_selection import SourceCandidate
from disagg_cluster.telemetry.steps.step_source import StepSources
from disagg_exporter.accounting import Ledger
from disagg_exporter.engine_pages.adapters import page_path
from disagg_exporter.model import (
    Assignment,
    CollectorStatus,
    Device,
    EngineState,
    EngineStatus,
    Role,
)
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.page import telling_lines

SILENT_SECONDS = 10.0
"""An engine known only by its page is gone once the page has been silent for this long."""

LINES_SECONDS = 1.5
"""How often a page is searched for lines that may reveal its engine's role."""

LINGER_SECONDS = 60.0
"""How long the counters of an engine that has gone stay on the page: for the last scrape, and for
an engine that is merely restarted."""

_SERVING = (EngineState.READY, EngineState.DRAINING)


class Origin(StrEnum):
    """Who started an engine: this daemon, or somebody else."""

    LAUNCHED = "launched"
    ATTACHED = "attached"


@dataclass(slots=True, kw_only=True)
class EngineRecord:
    """One engine of the node, launched or found; subclasses hold the evidence for it.

    `status` is what the metrics page shows of it, except what its own page and the last probe
    report. `shown`: it exists and is an engine. It is `serving` while requests reach its process,
    and since `ready_ns`. It last answered at `answered_ns`; one that is not `witnessed` by a
    process or a pod is known by its answers alone. `url` is the root of its server, empty while
    there is none to scrape. `part` is set if it is one node's part of an engine, `pseudo` if it is
    a device of its own. `assignment` is the last one reported to the ledger. `last_shown` is what
    was last observed of it, with the status made of that.
    """

    origin: Origin
    status: EngineStatus
    shown: bool = True
    serving: bool = False
    ready_ns: int | None = None
    answered_ns: int | None = None
    witnessed: bool = True
    url: str = ""
    tls: EngineTlsServer = field(default_factory=EngineTlsServer)
    ranks: int = 1
    namespace: str = ""
    part: EnginePart | None = None
    pseudo: Device | None = None
    assignment: Assignment | None = None
    lines: tuple[str, ...] = field(default=(), repr=False)
    lines_ns: int = 0
    last_shown: tuple[tuple[object, ...], EngineStatus] | None = field(default=None, repr=False)

    def state(self, now_ns: int) -> EngineState:
        """Return its state now."""
        state, answered_ns = self.status.state, self.answered_ns
        if self.witnessed or answered_ns is None or state is not EngineState.READY:
            return state
        is_silent = now_ns - answered_ns > SILENT_SECONDS * 1e9
        return EngineState.GONE if is_silent else state


def unknown_engine(name: str, kind: str, source: str, confidence: str) -> EngineStatus:
    """Return the status of an engine of which only the source of its role is known."""
    return EngineStatus(
        name, Role.UNKNOWN, kind, "", "", (), EngineState.GONE, False, source, confidence
    )


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """An engine whose role need not be inferred: one that we launched."""

    model_name: str
    role: Role


class EngineRegistry:
    """The records of all engines, by name, with their pages and step sources.

    Args:
        ledger: Receives every change.
        pages_seconds: The interval between scrapes of an engine's metrics page.
        up_of: Whether a worker answered its last health probe; None if unknown.
        served: Whether a worker that is starting served before, under an earlier daemon.
        lines_seconds: See `LINES_SECONDS`.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        ledger: Ledger,
        pages_seconds: float,
        *,
        up_of: Callable[[str], bool | None] = lambda _name: None,
        served: Callable[[str], bool] = lambda _name: False,
        lines_seconds: float = LINES_SECONDS,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.records: dict[str, EngineRecord] = {}
        self.sources = StepSources()
        """Where the engines' steps are received."""
        self.pages = PageScraper(
            lambda: self.urls,
            pages_seconds,
            self.is_scraped,
            path_of=self._page_path,
            keep_lines=self._keep_lines,
            tls_of=EngineTlsClients(self._tls_server).client,
        )
        """The metrics pages of all engines."""
        self.left_out: int | None = None
        """How many engines were found but not attached to; None without attaching."""
        self._ledger = ledger
        self._up_of = up_of
        self._served = served
        self._lines_ns = round(lines_seconds * 1e9)
        self._clock_ns = clock_ns

    @property
    def urls(self) -> Mapping[str, str]:
        """The current roots of the engines' servers."""
        return {name: record.url for name, record in self.records.items() if record.url}

    def devices(self) -> tuple[Device, ...]:
        """The pseudo-devices known only here: of attached engines, and of workers let go."""
        return tuple(r.pseudo for r in self.records.values() if r.pseudo is not None)

    def peers(self) -> tuple[KnownPeer, ...]:
        """Model and role of each launched engine that has a process."""
        return tuple(
            KnownPeer(record.status.model_name, record.status.role)
            for record in self.records.values()
            if record.origin is Origin.LAUNCHED and record.status.pid is not None
        )

    def launched_pids(self) -> tuple[int, ...]:
        """The leader pids of the processes that we started."""
        launched = (r.status.pid for r in self.records.values() if r.origin is Origin.LAUNCHED)
        return tuple(pid for pid in launched if pid is not None)

    def is_scraped(self, name: str) -> bool:
        """Whether an engine's page is worth scraping."""
        record = self.records[name]
        return record.origin is Origin.ATTACHED or self._serves(record, self._clock_ns())

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Return every engine as the metrics page shows it."""
        now_ns = self._clock_ns()
        return tuple(self._status(r, now_ns) for r in self.records.values() if r.shown)

    def source_candidates(self) -> tuple[SourceCandidate, ...]:
        """Return every engine as input to source selection."""
        now_ns = self._clock_ns()
        return tuple(
            SourceCandidate(
                engine=name,
                role=record.status.role,
                devices=record.status.devices,
                pid=record.status.pid,
                ready_ns=record.ready_ns if self._serves(record, now_ns) else None,
                page=self.pages.page(name),
                last_received=self.sources.last_received(name),
                part=record.part,
                step_tokens=record.status.limits.max_num_batched_tokens,
            )
            for name, record in self.records.items()
            if record.shown
        )

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of step receivers and page scrapes."""
        return (*self.sources.collectors(), *self.pages.statuses())

    def assign(self, record: EngineRecord, now_ns: int) -> None:
        """Report an engine's assignment to the ledger, if it has changed."""
        before, status, state = record.assignment, record.status, record.state(now_ns)
        now = Assignment(
            engine=status.engine,
            role=status.role,
            devices=status.devices,
            state=state,
            since_ns=now_ns if before is None else before.since_ns,
            pids=() if status.pid is None else (status.pid,),
            model_name=status.model_name,
            ranks=record.ranks,
            engine_namespace=record.namespace,
        )
        if now == before or (before is None and state is EngineState.GONE):
            return
        reported = replace(now, since_ns=now_ns)
        self._ledger.assign(reported)
        # Set only now, so that a failed report is repeated.
        record.assignment = reported

    def forget(self, name: str) -> None:
        """Drop an engine that is gone for good."""
        self._ledger.forget(name)
        del self.records[name]

    def _serves(self, record: EngineRecord, now_ns: int) -> bool:
        """Whether it serves; an adopted engine may serve before it has answered a probe."""
        if record.origin is Origin.ATTACHED:
            return record.state(now_ns) in _SERVING
        goes_on = record.status.state is EngineState.STARTING and self._served(record.status.engine)
        return record.serving or goes_on

    def _status(self, record: EngineRecord, now_ns: int) -> EngineStatus:
        name, kind = record.status.engine, record.status.kind
        known = self.pages.state(name)
        if record.origin is Origin.LAUNCHED:
            up = self._up_of(name) if record.serving and record.status.pid is not None else False
        else:
            scraped = known.status is not None and known.status.success
            up = record.status.follows is not None or scraped
            kind = kind if known.page is None else known.page.kind
        state = record.state(now_ns)
        seen = (
            record.status,
            kind,
            known.version,
            state,
            up,
            known.page,
            known.tally.counts,
            known.tls,
        )
        if record.last_shown is not None and record.last_shown[0] == seen:
            return record.last_shown[1]  # several ask in each round
        shown = replace(
            record.status,
            kind=kind,
            version=known.version or "",
            state=state,
            up=up,
            page=known.page,
            serving=known.tally.counts,
            tls=known.tls,
        )
        record.last_shown = seen, shown
        return shown

    # The methods below may be called on the scraping threads.

    def _page_path(self, name: str) -> str:
        return page_path(self.records[name].status.kind)

    def _tls_server(self, name: str) -> EngineTlsServer:
        record = self.records.get(name)
        return EngineTlsServer() if record is None else record.tls

    def _keep_lines(self, name: str, page: bytes) -> tuple[str, ...]:
        """Return lines that may reveal an attached engine's role, searched at intervals."""
        record = self.records.get(name)
        if record is None or record.origin is Origin.LAUNCHED or not record.url:
            return ()
        now_ns = self._clock_ns()
        if now_ns - record.lines_ns >= self._lines_ns:
            record.lines_ns, record.lines = now_ns, telling_lines(page)
        return record.lines
