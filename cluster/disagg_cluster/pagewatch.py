"""Reads the metrics page of every engine on a clock; one that hangs delays no other."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus, EnginePage, ServingCounts
from disagg_exporter.pages import (
    EngineWindow,
    Heads,
    PageError,
    Tally,
    page_path,
    parse_page,
    version_path,
    window,
)
from disagg_exporter.scrape import EngineRefused, EngineUnreachable, fetch

Fetch = Callable[[str, float], bytes]
KeepLines = Callable[[str, bytes], tuple[str, ...]]

# One look an engine at a time, however long it hangs; more engines than this wait for one another.
MAX_THREADS = 64


class PageWatch:
    """The last page of each engine, and how the last look at it went.

    Args:
        bases: The root of each engine's server, by the engine's name; engines may come and go, and
            are asked for anew at each look.
        interval_seconds: From one look at an engine to the next.
        running: Whether an engine has a process worth asking.
        path_of: Where on its server an engine's page is.
        keep_lines: Which lines of an engine's page are kept as they are.
        deadline_seconds: What one look may take, however slowly the engine drips.
        fetch, clock_ns, wall: Seams.
    """

    def __init__(
        self,
        bases: Mapping[str, str],
        interval_seconds: float,
        running: Callable[[str], bool],
        *,
        path_of: Callable[[str], str] = lambda _engine: page_path(""),
        keep_lines: KeepLines = lambda _engine, _page: (),
        deadline_seconds: float = 2.0,
        fetch: Fetch = fetch,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self._bases = bases
        self._interval_seconds = interval_seconds
        self._running = running
        self._path_of = path_of
        self._keep_lines = keep_lines
        self._deadline_seconds = deadline_seconds
        self._fetch = fetch
        self._clock_ns = clock_ns
        self._wall = wall
        self._log = log or logging.getLogger(__name__)
        self._pages: dict[str, EnginePage] = {}
        self._windows: dict[str, EngineWindow] = {}
        self._versions: dict[str, str] = {}
        self._heads: dict[str, Heads] = {}
        self._tallies: dict[str, Tally] = {}
        self._statuses: dict[str, CollectorStatus] = {}
        self._complaints: dict[str, str] = {}
        self._lines: dict[str, tuple[str, ...]] = {}
        self._answered_ns: dict[str, int] = {}

    async def run(self) -> None:
        """Look at all engines until cancelled."""
        executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="page")
        following: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    following = {e: task for e, task in following.items() if not task.done()}
                    for engine in set(self._bases) - following.keys():
                        following[engine] = group.create_task(self._follow(engine, executor))
                    await asyncio.sleep(min(self._interval_seconds, 0.5))
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def page(self, engine: str) -> EnginePage | None:
        """Return the engine's last page; None while it has no readable one."""
        return self._pages.get(engine)

    def window(self, engine: str) -> EngineWindow | None:
        """Return what happened between the last two pages."""
        return self._windows.get(engine)

    def serving(self, engine: str) -> ServingCounts | None:
        """Return what the engine has counted since its page was first seen; None before."""
        tally = self._tallies.get(engine)
        return None if tally is None else tally.counts

    def version(self, engine: str) -> str:
        """Return the version the engine told, empty before it did."""
        return self._versions.get(engine, "")

    def lines(self, engine: str) -> tuple[str, ...]:
        """Return the lines of its last page that were to be kept."""
        return self._lines.get(engine, ())

    def answered_ns(self, engine: str) -> int | None:
        """Return when anything answered last where its page should be."""
        return self._answered_ns.get(engine)

    def status(self, engine: str) -> CollectorStatus | None:
        """Return how the last look at an engine went; None before the first."""
        return self._statuses.get(engine)

    def statuses(self) -> tuple[CollectorStatus, ...]:
        """Return how the last look at each engine went, collector `engine:<name>`."""
        return tuple(self._statuses.values())

    async def _follow(self, engine: str, executor: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while engine in self._bases:
            began_ns = self._clock_ns()
            if self._running(engine):
                try:
                    page = await loop.run_in_executor(executor, self._look, engine)
                except DisaggError as error:
                    if isinstance(error, EngineRefused | PageError):
                        self._answered_ns[engine] = self._clock_ns()
                    self._missed(engine, began_ns, str(error))
                except Exception as error:  # noqa: BLE001 - what anybody serves must not end us
                    self._log.debug("the page of %s failed", engine, exc_info=True)
                    # Its text may quote what it failed on, which may be a secret.
                    why = f"it fails with {type(error).__name__} (see --verbose); please report it"
                    self._missed(engine, began_ns, why)
                else:
                    self._answered_ns[engine] = page.t_ns
                    self._seen(engine, began_ns, page)
            else:
                self._forget_page(engine)
                self._statuses.pop(engine, None)
                if tally := self._tallies.get(engine):
                    tally.begin_anew()
            spent_seconds = (self._clock_ns() - began_ns) / 1e9
            await asyncio.sleep(max(self._interval_seconds - spent_seconds, 0.05))
        self._forget_page(engine)
        for kept in (
            self._statuses,
            self._complaints,
            self._answered_ns,
            self._heads,
            self._tallies,
        ):
            kept.pop(engine, None)

    def _look(self, engine: str) -> EnginePage:
        base = self._bases.get(engine)
        if base is None:
            raise EngineUnreachable("it has just gone")
        text = self._fetch(base + self._path_of(engine), self._deadline_seconds)
        self._lines[engine] = self._keep_lines(engine, text)
        heads = self._heads.setdefault(engine, Heads())
        page = parse_page(text, self._clock_ns(), heads)
        if engine not in self._versions:
            self._versions[engine] = self._ask_version(base + version_path(page.kind))
        return page

    def _ask_version(self, url: str) -> str:
        try:
            told = json.loads(self._fetch(url, self._deadline_seconds))
        except (DisaggError, ValueError, RecursionError):
            return ""
        version = told.get("version") if isinstance(told, dict) else None
        return version[:60] if isinstance(version, str) and version.isprintable() else ""

    def _seen(self, engine: str, began_ns: int, page: EnginePage) -> None:
        before = self._pages.get(engine)
        if before is not None and before.kind == page.kind:
            self._windows[engine] = window(before, page)
        self._pages[engine] = page
        self._tallies.setdefault(engine, Tally()).take(page)
        self._statuses[engine] = self._status(engine, began_ns, self._wall())
        if self._complaints.pop(engine, None):
            self._log.info("%s: metrics page is readable again", engine)

    def _missed(self, engine: str, began_ns: int, why: str) -> None:
        before = self._statuses.get(engine)
        self._forget_page(engine)
        last = before.last_success_timestamp_seconds if before else None
        self._statuses[engine] = self._status(engine, began_ns, last, success=False)
        # Once is no news: an engine that ends is asked once more than it can answer.
        if before is not None and not before.success and self._complaints.get(engine) != why:
            self._complaints[engine] = why
            self._log.warning("%s: metrics page: %s", engine, why)

    def _forget_page(self, engine: str) -> None:
        for kept in (self._pages, self._windows, self._versions, self._lines):
            kept.pop(engine, None)

    def _status(
        self, engine: str, began_ns: int, last: float | None, *, success: bool = True
    ) -> CollectorStatus:
        seconds = (self._clock_ns() - began_ns) / 1e9
        return CollectorStatus(f"engine:{engine}", success, seconds, last)
