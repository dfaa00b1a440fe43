"""Scrapes the metrics pages of frontends and routers that somebody else runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from disagg_cluster.config import Frontend
from disagg_cluster.telemetry.pages.front_tally import FrontTally
from disagg_exporter.collectors import CollectorHealth, DaemonExecutor
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.fronts import FrontPage, parse_front_page
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.model import CollectorStatus, FrontCounts

Fetch = Callable[[str, float], bytes]

FIRST_PAGES = 5
"""What a frontend's first pages have counted is the past; this is how many of them."""
_DEADLINE_SECONDS = 2.0

_log = logging.getLogger(__name__)


class FrontWatch:
    """The pages of the frontends that the node file names, and what they have counted.

    Args:
        frontends: Their addresses.
        interval_seconds: The interval between scrapes of each.
        fetch, clock_ns: Seams.
    """

    def __init__(
        self,
        frontends: tuple[Frontend, ...],
        interval_seconds: float,
        *,
        fetch: Fetch = fetch,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._fetch = fetch
        self._clock_ns = clock_ns
        self._watched = tuple(_Watched(each, interval_seconds) for each in frontends)

    def counts(self) -> tuple[FrontCounts, ...]:
        """Return what each has counted since its page was first observed."""
        now_ns = self._clock_ns()
        return tuple(each.tally.counts(now_ns) for each in self._watched)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return how the last scrape of each went, collector `frontend:<address>`."""
        return tuple(each.health.status() for each in self._watched if each.health.tried)

    async def run(self) -> None:
        """Scrape all until cancelled."""
        executor = DaemonExecutor(len(self._watched), "front-page")
        try:
            async with asyncio.TaskGroup() as group:
                for each in self._watched:
                    group.create_task(self._watch(each, executor))
        finally:
            executor.shutdown(wait=False)

    async def _watch(self, watched: _Watched, executor: DaemonExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_ns = self._clock_ns()
            with watched.health.round() as problems:
                page = await loop.run_in_executor(executor, self._read, watched)
                watched.tally.ingest(page, began_ns)
                if watched.tally.answers_in_turn(began_ns):
                    problems["processes"] = (
                        "several processes answer in turn, and only what has grown from one page "
                        "to the next can be counted: name each by an address of its own"
                    )
            spent_seconds = (self._clock_ns() - began_ns) / 1e9
            await asyncio.sleep(max(self._interval_seconds - spent_seconds, 0.05))

    def _read(self, watched: _Watched) -> FrontPage:
        text = self._fetch(watched.url, _DEADLINE_SECONDS)
        return parse_front_page(text, self._clock_ns(), watched.keys)


class _Watched:
    """One frontend: where its page is, and its state."""

    def __init__(self, frontend: Frontend, interval_seconds: float) -> None:
        address = frontend.url.partition("://")[2].rstrip("/")
        self.url = frontend.url.rstrip("/") + "/metrics"
        self.keys = SeriesKeys()
        self.tally = FrontTally(
            address,
            frontend.namespace,
            first_pages=FIRST_PAGES,
            interval_seconds=interval_seconds,
        )
        self.health = CollectorHealth(
            f"frontend:{address}",
            _log,
            failing="metrics page: ",
            recovered="metrics page is readable again",
            silent_failures=1,
        )
