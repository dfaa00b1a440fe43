"""The daemon's beat: the books are written on, and what the node knows is shown anew."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.daemon.engine_registry import Roster
from disagg_cluster.host.processes.process_table import parents
from disagg_cluster.lifecycle.state import WorkerState
from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_cluster.telemetry.snapshot import STALE_SECONDS, Books, WallClock, compose, read_books
from disagg_cluster.telemetry.source_selection import Sourcing
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.collectors.health import FailureCounts
from disagg_exporter.model import (
    CollectorStatus,
    DaemonCounts,
    Device,
    EngineStatus,
    GpuPrice,
    RouterStatus,
    Snapshot,
    WorkerStatus,
)

_log = logging.getLogger("disagg_node")

# How often the fast gauges are made anew while somebody watches, every how many of these the books
# are advanced, and how often what happens seldom is looked at.
BEAT_SECONDS = 0.25
ADVANCE_BEATS = 4
SELDOM_BEATS = 20


@dataclass(frozen=True, slots=True)
class Aside:
    """What is shown of a node beside its devices and engines."""

    workers: tuple[WorkerStatus, ...]
    collectors: tuple[CollectorStatus, ...]
    router: RouterStatus | None
    simulated: bool
    counts: DaemonCounts


class Pulse:
    """Keeps the books going and the snapshot fresh.

    Args:
        ledger, fullness: The books.
        roster: All engines.
        watch: The readings of the devices.
        devices: The node's own devices.
        aside: What is shown beside them.
        show: Takes each new snapshot.
        watched: Whether somebody looks so often that snapshots are made at every beat; else they
            are made when the books have been advanced.
        seldom: Called every few seconds.
        sourcing: The choice of each engine's source.
        inherit: Called once a second with all engines: what is known of their like is theirs.
        save: Writes the books down, given the time and Unix time minus it; before they are shown,
            which they may only be if it says so.
        gpu_price: What a GPU costs.
    """

    def __init__(
        self,
        ledger: Ledger,
        fullness: CapacityModel,
        roster: Roster,
        watch: DeviceWatch,
        devices: Sequence[Device],
        *,
        aside: Callable[[], Aside],
        show: Callable[[Snapshot], None],
        watched: Callable[[], bool],
        seldom: Callable[[], None],
        sourcing: Sourcing,
        inherit: Callable[[Sequence[EngineStatus], int], None],
        save: Callable[[int, float], bool],
        gpu_price: GpuPrice | None = None,
    ) -> None:
        self._ledger = ledger
        self._fullness = fullness
        self._roster = roster
        self._watch = watch
        self._devices = tuple(devices)
        self._aside = aside
        self._show = show
        self._failures = FailureCounts()
        self._watched = watched
        self._seldom = seldom
        self._save = save
        self._gpu_price = gpu_price
        self._sourcing = sourcing
        self._inherit = inherit
        self._accounting, self._capacity, self._shown, self._upkeep = (
            CollectorHealth(name, _log) for name in ("accounting", "capacity", "snapshot", "upkeep")
        )
        self._books: Books | None = None
        self._is_outdated = True
        self._books_ns = 0
        self._wall = WallClock()
        self._beat_ns = time.monotonic_ns()

    def age_seconds(self) -> float:
        """How long ago the last beat was; much more than `BEAT_SECONDS` if the loop hangs."""
        return (time.monotonic_ns() - self._beat_ns) / 1e9

    def resume(self, wall_offset_seconds: float) -> None:
        """Tell Unix time as the daemon before did: what it has shown does not move."""
        self._wall.resume(wall_offset_seconds)

    def wall_offset_seconds(self, now_ns: int) -> float:
        """Return Unix time minus monotonic time."""
        return self._wall.offset_seconds(now_ns, time.time())

    async def run(self) -> None:
        """Beat until cancelled."""
        beats = 0
        while True:
            self.beat(beats)
            beats += 1
            # Just after the beat of the steps sockets, so that what is heard is soon shown.
            await asyncio.sleep(BEAT_SECONDS - time.monotonic() % BEAT_SECONDS + 0.01)

    def beat(self, number: int) -> None:
        """Take one beat; what fails of it is said, shown and tried again, and the rest goes on."""
        now_ns = self._beat_ns = time.monotonic_ns()
        advancing = number % ADVANCE_BEATS == 0
        with self._accounting.round() if advancing else self._accounting.guard():
            self._watch.take()
            if advancing:
                self._advance(now_ns)
        if advancing:
            with self._capacity.round():
                readings = self._watch.look.readings(now_ns)
                engines = self._roster.statuses()
                self._fullness.advance(engines, now_ns, readings)
                self._inherit(engines, now_ns)
        if number % SELDOM_BEATS == 0:
            with self._upkeep.round():
                self._seldom()
        if advancing or self._watched():
            with self._shown.round():
                self._show_anew(now_ns)

    def _show_anew(self, now_ns: int) -> None:
        try:
            snapshot = self._compose(now_ns)
        except Exception as error:
            self._shown.fail(error)
            self._show_counted(self._without_measurements(now_ns))
            raise
        self._show_counted(snapshot)

    def _show_counted(self, snapshot: Snapshot) -> None:
        failures = self._failures.take(snapshot.collectors)
        self._show(replace(snapshot, unexpected_failures=failures))

    def _without_measurements(self, now_ns: int) -> Snapshot:
        """What can be said for certain: how workers and collectors stand, and the rest absent."""
        aside = self._aside()
        return Snapshot(
            taken_ns=now_ns,
            wall_offset_seconds=self._wall.offset_seconds(now_ns, time.time()),
            fresh_until_ns=now_ns - 1,
            workers=aside.workers,
            collectors=self._collectors(aside, now_ns),
            worker_states=tuple(WorkerState),
            simulated=aside.simulated,
        )

    def _collectors(self, aside: Aside, now_ns: int) -> tuple[CollectorStatus, ...]:
        own = (self._accounting, self._capacity, self._shown, self._upkeep)
        return (
            self._watch.look.status(now_ns),
            *aside.collectors,
            *self._roster.collectors(),
            *(health.status() for health in own),
        )

    def _advance(self, now_ns: int) -> None:
        self._sourcing.look(self._roster.subjects(), now_ns)
        self._ledger.advance(now_ns)
        self._is_outdated = True

    def _compose(self, now_ns: int) -> Snapshot:
        aside = self._aside()
        engines = self._roster.statuses()
        if self._is_outdated or self._books is None or not self._books.are_of(engines):
            # A counter that was shown and not written down would have been higher than our
            # successor's: then every `increase()` over our death counts it twice.
            self._is_outdated = not self._save(now_ns, self.wall_offset_seconds(now_ns))
            if not self._is_outdated:
                self._books = read_books(self._ledger, self._fullness, engines, now_ns)
                self._books_ns = now_ns
        if self._books is None:
            return self._without_measurements(now_ns)
        snapshot = compose(
            self._books,
            self._ledger.fast_gauges(now_ns),
            now_ns,
            self.wall_offset_seconds(now_ns),
            devices=(*self._devices, *self._roster.devices()),
            look=self._watch.look,
            engines=engines,
            parents=parents,
            workers=aside.workers,
            collectors=self._collectors(aside, now_ns),
            router=aside.router,
            gpu_price=self._gpu_price,
            simulated=aside.simulated,
            daemon_counts=aside.counts,
            left_out_engines=self._roster.left_out,
        )
        if self._is_outdated:
            # Absent soon, not frozen.
            until_ns = self._books_ns + round(STALE_SECONDS * 1e9)
            snapshot = replace(snapshot, fresh_until_ns=until_ns)
        return snapshot
