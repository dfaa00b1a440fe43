"""Has the metrics page of every engine read on a clock; one that hangs delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from disagg_cluster.telemetry.pages.label_values import LabelValues
from disagg_cluster.telemetry.pages.page_reader import KeepLines, Look, PageReader, Seen
from disagg_cluster.telemetry.pages.page_state import Watched, page_health
from disagg_exporter.engine_pages.adapters import page_path
from disagg_exporter.engine_pages.window import EngineWindow
from disagg_exporter.http.client.scrape import EngineUnreachable, addresses_at_hand, look_up
from disagg_exporter.http.tls_words import TlsError
from disagg_exporter.model import CollectorStatus, EnginePage, ServingCounts, TlsStatus

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

# How often we see whether engines have come, and the shortest interval of looks.
_TICK_SECONDS, _SHORTEST_SECONDS = 0.5, 0.05

# One of them reads; the others look up hosts that go by names, of which a resolver may be slow.
_MAX_THREADS = 32

TlsOf = Callable[[str, str], "ClientTls"]
"""Given an engine and its page's address; raises TlsError."""

MAX_VERSION = 60
OTHER_VERSION = "other"
"""What the version of an engine is that has told too many of late."""

_UNKNOWN = Watched(page_health("", logging.getLogger(__name__), time.time))


class PageWatch:
    """The last page of each engine, and how the last look at it went.

    Args:
        bases: The root of each engine's server, by the engine's name; engines may come and go, and
            are asked for anew at each look.
        interval_seconds: From one look at an engine to the next.
        running: Whether an engine has a process worth asking.
        path_of: Where on its server an engine's page is.
        keep_lines: Which lines of an engine's page are kept as they are.
        tls_of: How to speak TLS with an engine at an `https://` address; may take its time, and is
            asked on other threads.
        deadline_seconds: What one question may take, however slowly the engine drips.
        clock_ns, wall: Seams.
    """

    def __init__(
        self,
        bases: Mapping[str, str],
        interval_seconds: float,
        running: Callable[[str], bool],
        *,
        path_of: Callable[[str], str] = lambda _engine: page_path(""),
        keep_lines: KeepLines = lambda _engine, _page: (),
        tls_of: TlsOf | None = None,
        deadline_seconds: float = 2.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self._bases = bases
        self._interval_seconds = max(interval_seconds, _SHORTEST_SECONDS)
        self._running = running
        self._path_of = path_of
        self._keep_lines = keep_lines
        self._tls_of = tls_of
        self._deadline_seconds = deadline_seconds
        self._clock_ns = clock_ns
        self._wall = wall
        self._log = log or logging.getLogger(__name__)
        self._watched: dict[str, Watched] = {}
        self._versions = LabelValues(MAX_VERSION)

    async def run(self) -> None:
        """Look at all engines until cancelled."""
        loop = asyncio.get_running_loop()

        def deliver(seen: Sequence[Seen]) -> None:
            # The loop may be closed already when the daemon ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._take, seen)

        settings = self._keep_lines, self._deadline_seconds
        reader = PageReader(deliver, *settings, clock_ns=self._clock_ns)
        executor = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="page")
        tick_seconds = min(self._interval_seconds, _TICK_SECONDS)
        reading: asyncio.Future[None] | None = None
        try:
            reading = loop.run_in_executor(executor, reader.run)
            async with asyncio.TaskGroup() as group:
                while not reading.done():
                    self._forget_gone(reader)
                    at_hand: list[Look] = []
                    for look in self._due(tick_seconds, reader):
                        if look.addresses:
                            at_hand.append(look)
                        else:
                            group.create_task(self._look_later(look, reader, executor))
                    reader.look(at_hand)
                    await asyncio.sleep(tick_seconds)
                reading.result()
        except Exception as error:
            for watched in self._watched.values():
                watched.lose(error)
            raise
        finally:
            reader.stop()
            if reading is None:
                # No thread was to be had: it closes what it has opened.
                reader.run()
            executor.shutdown(wait=False, cancel_futures=True)

    def page(self, engine: str) -> EnginePage | None:
        """Return the engine's last page; None while it has no readable one."""
        return self._watched.get(engine, _UNKNOWN).page

    def window(self, engine: str) -> EngineWindow | None:
        """Return what happened between the last two pages."""
        return self._watched.get(engine, _UNKNOWN).window

    def serving(self, engine: str) -> ServingCounts | None:
        """Return what the engine has counted since its page was first seen; None before."""
        return self._watched.get(engine, _UNKNOWN).tally.counts

    def version(self, engine: str) -> str:
        """Return the version the engine told, empty before it did."""
        return self._watched.get(engine, _UNKNOWN).version or ""

    def lines(self, engine: str) -> tuple[str, ...]:
        """Return the lines of its last page that were to be kept."""
        return self._watched.get(engine, _UNKNOWN).lines

    def answered_ns(self, engine: str) -> int | None:
        """Return when anything answered last where its page should be."""
        return self._watched.get(engine, _UNKNOWN).answered_ns

    def worked_ns(self, engine: str) -> int | None:
        """Return an instant at or after which an engine worked, by its pages; None if unknown."""
        return self._watched.get(engine, _UNKNOWN).worked_ns

    def tls(self, engine: str) -> TlsStatus | None:
        """Return how an engine that speaks TLS was known at the last look; None without TLS."""
        return self._watched[engine].tls if engine in self._watched else None

    def status(self, engine: str) -> CollectorStatus | None:
        """Return how the last look at an engine went; None before the first."""
        return self._watched.get(engine, _UNKNOWN).status

    def statuses(self) -> tuple[CollectorStatus, ...]:
        """Return how the last look at each engine went, collector `engine:<name>`."""
        return tuple(w.status for w in self._watched.values() if w.status is not None)

    def _at(self, engine: str) -> Watched:
        if engine not in self._watched:
            self._watched[engine] = Watched(page_health(engine, self._log, self._wall))
        return self._watched[engine]

    def _forget_gone(self, reader: PageReader) -> None:
        gone = [e for e, w in self._watched.items() if e not in self._bases and not w.under_way]
        for engine in gone:
            del self._watched[engine]
            reader.forget(engine)

    def _due(self, tick_seconds: float, reader: PageReader) -> Iterator[Look]:
        """The looks to be taken now, all at once; without addresses if more has to be known."""
        now_ns = self._clock_ns()
        for engine, base in self._bases.items():
            watched = self._at(engine)
            if watched.under_way or watched.due_ns - now_ns > tick_seconds * 0.5e9:
                continue
            watched.due_ns = now_ns + round(self._interval_seconds * 1e9)
            try:
                look = self._look_at(engine, base, watched, reader, now_ns)
            except Exception as error:  # noqa: BLE001 - one engine is not to keep others unread
                watched.lose(error)
                continue
            if look is not None:
                watched.under_way = True
                yield look

    def _look_at(
        self, engine: str, base: str, watched: Watched, reader: PageReader, now_ns: int
    ) -> Look | None:
        if not self._running(engine):
            if watched.status is not None:
                # The next process is to be asked, not what may be left of this one.
                reader.forget(engine)
            watched.rest()
            return None
        look = Look(engine, base, self._path_of(engine), (), watched.version is None, now_ns)
        try:
            addresses = addresses_at_hand(look.url) or ()
            return look if look.speaks_tls else replace(look, addresses=addresses)
        except EngineUnreachable as error:
            watched.take(Seen.without_page(look, error), now_ns)
            return None

    async def _look_later(
        self, look: Look, reader: PageReader, executor: ThreadPoolExecutor
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(executor, self._prepared, look)
        except Exception as error:  # noqa: BLE001 - no thread, say: the next look tries again
            self._take([Seen.without_page(look, error)])
        else:
            reader.look([prepared])

    def _prepared(self, look: Look) -> Look:
        """A look with what resolvers and files had to say first; on a thread of its own."""
        addresses = addresses_at_hand(look.url) or look_up(look.url)
        if not look.speaks_tls or self._tls_of is None:
            return replace(look, addresses=addresses)
        try:
            return replace(look, addresses=addresses, tls=self._tls_of(look.engine, look.url))
        except TlsError as error:
            raise EngineUnreachable.by_tls(look.url, error) from None

    def _take(self, seen: Sequence[Seen]) -> None:
        """Take what the reader has seen."""
        for each in map(self._labelled, seen):
            self._watched[each.look.engine].take(each, self._clock_ns())

    def _labelled(self, seen: Seen) -> Seen:
        """What was seen, with a version that may be shown; an engine words it itself."""
        if seen.version is None:
            return seen
        version = self._versions.label(seen.look.engine, seen.version, self._clock_ns())
        return replace(seen, version=OTHER_VERSION if version is None else version)
