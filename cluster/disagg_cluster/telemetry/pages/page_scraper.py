"""Scrapes the metrics page of every engine periodically; one that hangs delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from disagg_cluster.telemetry.pages.label_values import LabelValues
from disagg_cluster.telemetry.pages.page_reader import (
    KeepLines,
    PageReader,
    ScrapeJob,
    ScrapeResult,
)
from disagg_cluster.telemetry.pages.page_state import PageState, page_health
from disagg_exporter.collectors import DaemonExecutor
from disagg_exporter.engine_pages.adapters import page_path
from disagg_exporter.http.client.scrape import addresses_at_hand, look_up
from disagg_exporter.http.client.unreachable import EngineUnreachable
from disagg_exporter.http.tls_errors import TlsError
from disagg_exporter.model import CollectorStatus, EnginePage

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

# How often new engines are noticed, and the shortest interval between scrapes.
_TICK_SECONDS, _SHORTEST_SECONDS = 0.5, 0.05

# One thread reads; the others look up host names, for which a resolver may be slow.
_MAX_THREADS = 32

TlsOf = Callable[[str, str], "ClientTls"]
"""Given an engine and its page's address; raises TlsError."""

MAX_VERSION = 60
OTHER_VERSION = "other"
"""The version label of an engine that has had too many versions recently."""

_UNKNOWN = PageState(page_health("", logging.getLogger(__name__)))


class PageScraper:
    """Keeps the last page of each engine, and how the last scrape of it went.

    Args:
        bases: Returns the root of each engine's server, by engine name, at each scrape.
        interval_seconds: The interval between scrapes of an engine.
        running: Whether an engine has a process worth scraping.
        path_of: Where on its server an engine's page is.
        keep_lines: Which lines of an engine's page are kept as they are.
        tls_of: How to speak TLS with an engine at an `https://` address; may block, and is called
            on other threads.
    """

    def __init__(
        self,
        bases: Callable[[], Mapping[str, str]],
        interval_seconds: float,
        running: Callable[[str], bool],
        *,
        path_of: Callable[[str], str] = lambda _engine: page_path(""),
        keep_lines: KeepLines = lambda _engine, _page: (),
        tls_of: TlsOf | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._bases = bases
        self._interval_seconds = max(interval_seconds, _SHORTEST_SECONDS)
        self._running = running
        self._path_of = path_of
        self._keep_lines = keep_lines
        self._tls_of = tls_of
        self._log = log or logging.getLogger(__name__)
        self._states: dict[str, PageState] = {}
        self._versions = LabelValues(MAX_VERSION)

    async def run(self) -> None:
        """Scrape all engines until cancelled."""
        loop = asyncio.get_running_loop()

        def deliver(results: Sequence[ScrapeResult]) -> None:
            # The loop may be closed already when the daemon ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ingest, results)

        reader = PageReader(deliver, self._keep_lines)
        executor = DaemonExecutor(_MAX_THREADS, "page")
        tick_seconds = min(self._interval_seconds, _TICK_SECONDS)
        reading: asyncio.Future[None] | None = None
        try:
            reading = loop.run_in_executor(executor, reader.run)
            async with asyncio.TaskGroup() as group:
                while not reading.done():
                    self._forget_gone(reader)
                    at_hand: list[ScrapeJob] = []
                    for job in self._due(tick_seconds, reader):
                        if job.addresses:
                            at_hand.append(job)
                        else:
                            group.create_task(self._scrape_later(job, reader, executor))
                    reader.scrape(at_hand)
                    await asyncio.sleep(tick_seconds)
                reading.result()
        except Exception as error:
            for state in self._states.values():
                state.fail(error)
            raise
        finally:
            reader.stop()
            if reading is None:
                # There was no thread for it: this closes what it has opened.
                reader.run()
            executor.shutdown(wait=False)

    def page(self, engine: str) -> EnginePage | None:
        """Return the engine's last page; None while it has no readable one."""
        return self.state(engine).page

    def state(self, engine: str) -> PageState:
        """Return the state of the engine's page; read only."""
        return self._states.get(engine, _UNKNOWN)

    def statuses(self) -> tuple[CollectorStatus, ...]:
        """Return how the last scrape of each engine went, collector `engine:<name>`."""
        return tuple(w.status for w in self._states.values() if w.status is not None)

    def _at(self, engine: str) -> PageState:
        if engine not in self._states:
            self._states[engine] = PageState(page_health(engine, self._log))
        return self._states[engine]

    def _forget_gone(self, reader: PageReader) -> None:
        bases = self._bases()
        gone = [e for e, w in self._states.items() if e not in bases and not w.under_way]
        for engine in gone:
            del self._states[engine]
            reader.forget(engine)

    def _due(self, tick_seconds: float, reader: PageReader) -> Iterator[ScrapeJob]:
        """Yield the jobs due now, all at once; without addresses if something must be looked up."""
        now_ns = time.monotonic_ns()
        for engine, base in self._bases().items():
            state = self._at(engine)
            if state.under_way or state.due_ns - now_ns > tick_seconds * 0.5e9:
                continue
            state.due_ns = now_ns + round(self._interval_seconds * 1e9)
            try:
                job = self._job_of(engine, base, state, reader, now_ns)
            except Exception as error:  # noqa: BLE001 - one engine is not to keep others unread
                state.fail(error)
                continue
            if job is not None:
                state.under_way = True
                yield job

    def _job_of(
        self, engine: str, base: str, state: PageState, reader: PageReader, now_ns: int
    ) -> ScrapeJob | None:
        if not self._running(engine):
            if state.status is not None:
                # The next process is to be scraped, not what may be left of this one.
                reader.forget(engine)
            state.rest()
            return None
        job = ScrapeJob(engine, base, self._path_of(engine), (), state.version is None, now_ns)
        try:
            addresses = addresses_at_hand(job.url) or ()
            return job if job.speaks_tls else replace(job, addresses=addresses)
        except EngineUnreachable as error:
            state.ingest(ScrapeResult(job, error=error), now_ns)
            return None

    async def _scrape_later(
        self, job: ScrapeJob, reader: PageReader, executor: DaemonExecutor
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(executor, self._prepared, job)
        except Exception as error:  # noqa: BLE001 - no thread, say: the next scrape tries again
            self._ingest([ScrapeResult(job, error=error)])
        else:
            reader.scrape([prepared])

    def _prepared(self, job: ScrapeJob) -> ScrapeJob:
        """Return a job completed by resolvers and files, which may block; on a separate thread."""
        addresses = addresses_at_hand(job.url) or look_up(job.url)
        if not job.speaks_tls or self._tls_of is None:
            return replace(job, addresses=addresses)
        try:
            return replace(job, addresses=addresses, tls=self._tls_of(job.engine, job.url))
        except TlsError as error:
            raise EngineUnreachable.by_tls(job.url, error) from None

    def _ingest(self, results: Sequence[ScrapeResult]) -> None:
        """Ingest the reader's results."""
        for each in map(self._labelled, results):
            self._states[each.job.engine].ingest(each, time.monotonic_ns())

    def _labelled(self, result: ScrapeResult) -> ScrapeResult:
        """Return a result with a version that may be shown: the engine itself chooses its text."""
        if result.version is None:
            return result
        version = self._versions.label(result.job.engine, result.version, time.monotonic_ns())
        return replace(result, version=OTHER_VERSION if version is None else version)
