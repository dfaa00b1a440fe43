"""Scans for engines every few seconds, and follows what they are for."""

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

_log = logging.getLogger("disagg_node")


class EngineFinder(Protocol):
    """A finder: says what it sees now, and what it cannot see; may take its time."""

    @property
    def finder(self) -> Finder:
        """Which one it is."""

    def scan(self) -> Scan:
        """One look."""


class DiscoveryLoop:
    """Asks all finders on a clock, on a thread of its own.

    Args:
        finders: Whom to ask.
        attached: Told of what they found.
        names: What engines are called.
        registry: Knows the engines that we launched, for the roles of those beside them; an engine
            that has one of their processes is not found.
        interval_seconds: From one scan to the next.
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
        self._health = {
            finder.finder: CollectorHealth(
                f"discovery:{finder.finder}",
                _log,
                subject=f"discovery by {finder.finder}",
                recovered="sees everything again",
            )
            for finder in finders
        }
        self._round = CollectorHealth("discovery", _log)

    async def run(self) -> None:
        """Look until cancelled."""
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
        """How the last look of each finder went, collector `discovery:<finder>`.

        And `discovery`, what is made of what they see, once that has failed.
        """
        finders = tuple(health.status() for health in self._health.values() if health.tried)
        return (*finders, *((self._round.status(),) if self._round.has_failed else ()))

    async def _scan_once(self, loop: asyncio.AbstractEventLoop, executor: DaemonExecutor) -> None:
        scans = await loop.run_in_executor(executor, self._scan)
        # Asked again, now that nothing can be started: one that was just being started while the
        # finders looked was not known as ours to them.
        ours = frozenset(self._registry.launched_pids())
        seen = (observation for scan in scans for observation in scan.observations)
        engines = merge_observations(
            observation for observation in seen if not observation.pids & ours
        )
        self._attached.update(self._names.name(engines))
        candidates, peers = self._attached.candidates(), self._registry.peers()
        # Whatever is made of them, the engines' pages and states are followed.
        verdicts: Mapping[str, Verdict] = {}
        try:
            verdicts = await loop.run_in_executor(executor, self._resolve_roles, candidates, peers)
        finally:
            self._attached.settle(verdicts)

    def lost(self) -> tuple[str, ...]:
        """What the finders cannot see, and why."""
        return tuple(health.why for health in self._health.values() if not health.ok)

    def _scan(self) -> tuple[Scan, ...]:
        return tuple(map(self._scan_with, self._finders))

    def _scan_with(self, finder: EngineFinder) -> Scan:
        """What a finder sees; one that fails, on what anybody can start, ends no other."""
        scan = Scan()
        with self._health[finder.finder].round() as problems:
            scan = finder.scan()
            if scan.lost:
                problems[""] = scan.lost
        return scan

    def _resolve_roles(
        self, candidates: Sequence[Candidate], peers: Sequence[KnownPeer]
    ) -> Mapping[str, Verdict]:
        return self._resolver.resolve(candidates, peers, time.monotonic())
