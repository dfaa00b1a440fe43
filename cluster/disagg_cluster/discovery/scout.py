"""Looks for engines every few seconds, and follows what they are for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from disagg_cluster.discovery.attached import Attached
from disagg_cluster.discovery.joining import join
from disagg_cluster.discovery.judging import Case, Judge, KnownPeer
from disagg_cluster.discovery.naming import Names
from disagg_cluster.discovery.nouns import Finder, Look
from disagg_cluster.pagewatch import PageWatch
from disagg_exporter.model import CollectorStatus
from disagg_exporter.roles import Verdict

INTERVAL_SECONDS = 2.0

_log = logging.getLogger("disagg_node")


class LooksForEngines(Protocol):
    """A finder: says what it sees now, and what it cannot see; may take its time."""

    @property
    def finder(self) -> Finder:
        """Which one it is."""

    def look(self) -> Look:
        """One look."""


class Scout:
    """Asks all finders on a clock, on a thread of its own.

    Args:
        finders: Whom to ask.
        attached: Told of what they found.
        names: What engines are called.
        pages: The engines' metrics pages.
        peers: The engines that we launched, for the roles of those beside them.
        ours: Their processes; an engine that has one of them is not found.
        interval_seconds: From one look to the next.
        wall: Unix seconds.
    """

    def __init__(
        self,
        finders: Sequence[LooksForEngines],
        attached: Attached,
        names: Names,
        pages: PageWatch,
        peers: Callable[[], Iterable[KnownPeer]] = tuple,
        *,
        ours: Callable[[], Iterable[int]] = tuple,
        interval_seconds: float = INTERVAL_SECONDS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._finders = tuple(finders)
        self._attached = attached
        self._names = names
        self._pages = pages
        self._peers = peers
        self._ours = ours
        self._interval_seconds = interval_seconds
        self._wall = wall
        self._judge = Judge()
        self._looks: dict[str, Look] = {}
        self._heard: dict[str, float] = {}
        self._stumbled = False

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="scout")
        try:
            while True:
                looks = await loop.run_in_executor(executor, self._look)
                for look in looks:
                    self._seen(look)
                # Asked again, now that nothing can be started: one that was just being started
                # while the finders looked was not known as ours to them.
                ours = frozenset(self._ours())
                seen = (sighting for look in looks for sighting in look.sightings)
                engines = join(sighting for sighting in seen if not sighting.pids & ours)
                self._attached.take(self._names.name(engines))
                cases, peers = self._attached.cases(self._pages), tuple(self._peers())
                verdicts = await loop.run_in_executor(executor, self._judged, cases, peers)
                self._attached.settle(verdicts, self._pages)
                await asyncio.sleep(self._interval_seconds)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """How the last look of each finder went, collector `discovery:<finder>`."""
        return tuple(
            CollectorStatus(
                f"discovery:{finder}", not look.lost, look.duration_seconds, self._heard.get(finder)
            )
            for finder, look in self._looks.items()
        )

    def lost(self) -> tuple[str, ...]:
        """What the finders cannot see, and why."""
        return tuple(look.lost for look in self._looks.values() if look.lost)

    def _look(self) -> tuple[Look, ...]:
        return tuple(map(_asked, self._finders))

    def _judged(self, cases: Sequence[Case], peers: Sequence[KnownPeer]) -> Mapping[str, Verdict]:
        """What the engines are for; nothing new where it cannot be told."""
        try:
            verdicts = self._judge.judge(cases, peers, time.monotonic())
        except Exception as error:  # noqa: BLE001 - what anybody can start must not end the daemon
            if not self._stumbled:
                why = type(error).__name__
                _log.error("roles stay as they are: %s (see --verbose); please report it", why)
            self._stumbled = True
            _log.debug("the judge failed", exc_info=True)
            return {}
        self._stumbled = False
        return verdicts

    def _seen(self, look: Look) -> None:
        before = self._looks.get(look.finder)
        self._looks[look.finder] = look
        if not look.lost:
            self._heard[look.finder] = self._wall()
        if look.lost != (before.lost if before else ""):
            if look.lost:
                _log.warning("discovery by %s: %s", look.finder, look.lost)
            else:
                _log.info("discovery by %s: sees everything again", look.finder)


def _asked(finder: LooksForEngines) -> Look:
    """What a finder sees; one that fails, on what anybody can start, ends neither us nor others."""
    try:
        return finder.look()
    except Exception as error:  # noqa: BLE001 - as said above
        # Its text may quote what it failed on, which may be a secret.
        _log.debug("the finder %s failed", finder.finder, exc_info=True)
        why = f"it fails with {type(error).__name__} (see --verbose); please report it"
        return Look(finder.finder, (), why, 0.0)
