"""Scans for engines every few seconds, and updates their roles."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from disagg_cluster.discovery.attached.engines import AttachedEngines
from disagg_cluster.discovery.observations.merge import merge_observations
from disagg_cluster.discovery.observations.role_resolver import Candidate, RoleResolver
from disagg_cluster.discovery.observations.types import EngineNames, Finder, Scan
from disagg_cluster.telemetry.engine_registry import EngineRegistry, KnownPeer
from disagg_exporter.collectors import CollectorHealth, DaemonExecutor
from disagg_exporter.model import CollectorStatus
from disagg_exporter.roles.evidence.types import Verdict

INTERVAL_SECONDS = 2.0

KEPT_SECONDS = 30.0
"""How long what a finder last observed is kept while its scans fail, as without a descriptor.

An engine that counts as gone loses its account and the sockets of its steps.
"""

_log = logging.getLogger("disagg_node")


class EngineFinder(Protocol):
    """A finder: reports what it observes now, and what it cannot observe; may block."""

    @property
    def finder(self) -> Finder:
        """Its kind."""

    def scan(self) -> Scan:
        """Scan once."""


class DiscoveryLoop:
    """Runs all finders periodically, on a separate thread.

    Args:
        finders: The finders.
        attached: Receives what they found.
        names: Names of engines.
        registry: Knows the engines that we launched, for the roles of their peers; a found engine
            that contains one of their processes is dropped.
        interval_seconds: Interval between scans.
    """

    def __init__(
        self,
        finders: Sequence[EngineFinder],
        attached: AttachedEngines,
        names: EngineNames,
        registry: EngineRegistry,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._finders = tuple(finders)
        self._attached = attached
        self._names = names
        self._registry = registry
        self._interval_seconds = interval_seconds
        self._resolver = RoleResolver()
        # When each finder last observed anything, and what.
        self._observed: dict[Finder, tuple[float, Scan]] = {}
        self._health = {
            finder.finder: CollectorHealth(
                f"discovery:{finder.finder}",
                _log,
                subject=f"discovery by {finder.finder}",
                recovered="observes everything again",
            )
            for finder in finders
        }
        self._round = CollectorHealth("discovery", _log)

    async def run(self) -> None:
        """Scan until cancelled."""
        loop = asyncio.get_running_loop()
        executor = DaemonExecutor(1, "scout")
        try:
            while True:
                with self._round.round():
                    await self._scan_once(loop, executor)
                await asyncio.sleep(self._interval_seconds)
        finally:
            executor.shutdown(wait=False)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return how the last scan of each finder went, collector `discovery:<finder>`.

        And `discovery`, for processing their results, once that has failed.
        """
        finders = tuple(health.status() for health in self._health.values() if health.tried)
        return (*finders, *((self._round.status(),) if self._round.has_failed else ()))

    async def _scan_once(self, loop: asyncio.AbstractEventLoop, executor: DaemonExecutor) -> None:
        scans = await loop.run_in_executor(executor, self._scan)
        # Read again, now that nothing can start: an engine that was just being launched during the
        # scan was not known as ours to the finders.
        ours = frozenset(self._registry.launched_pids())
        seen = (observation for scan in scans for observation in scan.observations)
        engines = merge_observations(
            observation for observation in seen if not observation.pids & ours
        )
        self._attached.update(self._names.name(engines))
        candidates, peers = self._attached.candidates(), self._registry.peers()
        # Even if processing fails, the engines' pages and states are updated.
        verdicts: Mapping[str, Verdict] = {}
        try:
            verdicts = await loop.run_in_executor(executor, self._resolve_roles, candidates, peers)
        finally:
            self._attached.settle(verdicts)

    def lost(self) -> tuple[str, ...]:
        """Return what the finders cannot observe, and why."""
        return tuple(health.why for health in self._health.values() if not health.ok)

    def _scan(self) -> tuple[Scan, ...]:
        return tuple(map(self._scan_with, self._finders))

    def _scan_with(self, finder: EngineFinder) -> Scan:
        """Return a finder's scan; a failure, which any process may provoke, stops no other one.

        While its scans fail, what it observed last is returned for `KEPT_SECONDS`.
        """
        scan, now_seconds = Scan(failed=True), time.monotonic()
        with self._health[finder.finder].round() as problems:
            scan = finder.scan()
            if scan.lost:
                problems[""] = scan.lost
        if not scan.failed:
            self._observed[finder.finder] = now_seconds, scan
            return scan
        at_seconds, last = self._observed.get(finder.finder, (now_seconds, scan))
        return last if now_seconds - at_seconds < KEPT_SECONDS else scan

    def _resolve_roles(
        self, candidates: Sequence[Candidate], peers: Sequence[KnownPeer]
    ) -> Mapping[str, Verdict]:
        return self._resolver.resolve(candidates, peers, time.monotonic())
