"""The router, run as one more worker, and its metrics page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from disagg_cluster.config import NodeConfig, Router
from disagg_cluster.config.restart_policy import restart_policy
from disagg_cluster.config.router import ROUTER_NAME
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.launch.router_command import router_command, router_engines, start_seconds
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_cluster.telemetry.pages.front_tally import FrontTally
from disagg_exporter.collectors import CollectorHealth, DaemonExecutor
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.engine_pages.fronts import FrontPage, parse_front_page
from disagg_exporter.engine_pages.router import count_on, parse_router_page
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.model import (
    CollectorStatus,
    FrontCounts,
    RequestSource,
    RouterEngine,
    RouterPage,
    RouterStatus,
)

Fetch = Callable[[str, float], bytes]

DEADLINE_SECONDS = 2.0
"""Time limit for one scrape of the router's page."""


def router_spec(config: NodeConfig, router: Router, log_path: Path) -> WorkerSpec:
    """The router's command, probe target and deadlines."""
    deadlines = router.deadlines
    health = config.health.overridden_by(router.health)
    restart = config.restart.overridden_by(router.restart)
    usual = restart_policy(deadlines, restart, health, config.intervals.health_seconds)
    patience = replace(
        usual,
        start_seconds=start_seconds(config, router),
        # When told to end, it accepts no more requests and finishes those it has, so there is no
        # drain to wait for first.
        drain_seconds=0.0,
        stop_seconds=deadlines.drain_seconds + deadlines.stop_seconds,
    )
    # Its /health and /readiness depend on its engines: it must not be killed because they are gone.
    target = ProbeTarget(
        router.port,
        "",
        router.probe_host,
        health_path="/liveness",
        timeout_seconds=health.timeout_seconds,
    )
    return WorkerSpec(
        ROUTER_NAME,
        router_command(config, router),
        log_path,
        target,
        patience,
        in_front=True,
    )


class RouterHandle:
    """The node's router: its worker spec and its observed state."""

    def __init__(self, config: NodeConfig, router: Router, folder: RunFolder) -> None:
        self.spec = router_spec(config, router, folder.log(ROUTER_NAME))
        self.watch = RouterWatch(
            router.metrics_url,
            router_engines(config, router),
            config.intervals.pages_seconds,
            lambda: self._pid,
            model_name=_only_model(config),
        )
        self._pid: int | None = None

    def changed(self, pid: int | None) -> None:
        """Set the router's current process."""
        self._pid = pid

    @property
    def pid(self) -> int | None:
        """The pid of the router's current process."""
        return self._pid


def _only_model(config: NodeConfig) -> str:
    """The only model of the workers, for router pages without model labels; else empty."""
    names = {worker.model_name for worker in config.workers}
    return names.pop() if len(names) == 1 else ""


class RouterWatch:
    """The router's last page, and its counts accumulated across restarts.

    Args:
        url: Its metrics page.
        engines: The engines it sends requests to.
        interval_seconds: Time between scrapes.
        process: The pid of the router's current process, None without one.
        model_name: The model it serves; empty if unknown.
        fetch, wall: Test seams.
    """

    def __init__(
        self,
        url: str,
        engines: tuple[RouterEngine, ...],
        interval_seconds: float,
        process: Callable[[], int | None],
        *,
        model_name: str = "",
        fetch: Fetch = fetch,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._interval_seconds = interval_seconds
        self._process = process
        self._fetch = fetch
        self._keys = SeriesKeys()
        self._status = RouterStatus(engines)
        self._tally = FrontTally(
            ROUTER_NAME, model_name=model_name, interval_seconds=interval_seconds
        )
        self._front_keys = SeriesKeys()
        self._health = CollectorHealth(
            "router",
            logging.getLogger(__name__),
            failing="metrics page: ",
            recovered="metrics page is readable again",
            # A single failure is not reported: a router that starts or ends cannot answer.
            silent_failures=1,
            wall=wall,
        )
        self._last: tuple[int, RouterPage] | None = None

    def status(self) -> RouterStatus:
        """Return the router's state for the metrics page."""
        return self._status

    def set_engines(self, engines: tuple[RouterEngine, ...]) -> None:
        """Set the engines it sends requests to, with their phases."""
        self._status = replace(self._status, engines=engines)

    def counts(self) -> FrontCounts:
        """Return the user requests it has counted since its page was first scraped."""
        return self._tally.counts(time.monotonic_ns())

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector `router`: the last scrape; nothing while it does not run."""
        return (self._health.status(),) if self._health.tried else ()

    async def run(self) -> None:
        """Scrape until cancelled."""
        executor = DaemonExecutor(2, "router-page")
        try:
            while True:
                began_ns = time.monotonic_ns()
                await self._scrape(executor)
                spent_seconds = (time.monotonic_ns() - began_ns) / 1e9
                await asyncio.sleep(max(self._interval_seconds - spent_seconds, 0.05))
        finally:
            executor.shutdown(wait=False)

    async def _scrape(self, executor: DaemonExecutor) -> None:
        pid = self._process()
        if pid is None:
            self._status = replace(self._status, page=None)
            self._health.rest()
            return
        loop = asyncio.get_running_loop()
        with self._health.round():
            try:
                page, front = await loop.run_in_executor(executor, self._read)
                self._seen(pid, page, front)
            except Exception:
                self._status = replace(self._status, page=None)
                raise

    def _read(self) -> tuple[RouterPage, FrontPage]:
        text, now_ns = self._fetch(self._url, DEADLINE_SECONDS), time.monotonic_ns()
        page = parse_router_page(text, now_ns, self._keys)
        try:
            return page, parse_front_page(text, now_ns, self._front_keys)
        except PageError:
            # Before its first request, and for some seconds after, the page has no durations.
            return page, FrontPage(RequestSource.ROUTER, ())

    def _seen(self, pid: int, page: RouterPage, front: FrontPage) -> None:
        # Counters start at 0 in a new process, so the page of another one is no baseline.
        before = self._last[1] if self._last is not None and self._last[0] == pid else None
        counts = count_on(self._status.counts, before, page)
        if self._last is not None and self._last[0] != pid:
            self._tally.restart()
        self._tally.ingest(front, page.t_ns)
        self._last = pid, page
        self._status = replace(self._status, counts=counts, page=page)
