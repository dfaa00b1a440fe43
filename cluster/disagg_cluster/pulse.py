"""The daemon's beat: the books are written on, and what the node knows is shown anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disagg_cluster.devicewatch import DeviceWatch
from disagg_cluster.discovery.proctable import parents
from disagg_cluster.nodeview import Books, WallClock, compose, read_books
from disagg_cluster.roster import Roster
from disagg_cluster.sourcing import Sourcing
from disagg_exporter.accounting import Ledger
from disagg_exporter.fullness import Fullness
from disagg_exporter.model import (
    CollectorStatus,
    Device,
    GpuPrice,
    RouterStatus,
    Snapshot,
    WorkerStatus,
)

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
        gpu_price: What a GPU costs.
    """

    def __init__(
        self,
        ledger: Ledger,
        fullness: Fullness,
        roster: Roster,
        watch: DeviceWatch,
        devices: Sequence[Device],
        *,
        aside: Callable[[], Aside],
        show: Callable[[Snapshot], None],
        watched: Callable[[], bool],
        seldom: Callable[[], None],
        gpu_price: GpuPrice | None = None,
    ) -> None:
        self._ledger = ledger
        self._fullness = fullness
        self._roster = roster
        self._watch = watch
        self._devices = tuple(devices)
        self._aside = aside
        self._show = show
        self._watched = watched
        self._seldom = seldom
        self._gpu_price = gpu_price
        self._sourcing = Sourcing(ledger)
        self._books: Books | None = None
        self._wall = WallClock()
        self._beat_ns = time.monotonic_ns()

    def age_seconds(self) -> float:
        """How long ago the last beat was; much more than `BEAT_SECONDS` if the loop hangs."""
        return (time.monotonic_ns() - self._beat_ns) / 1e9

    async def run(self) -> None:
        """Beat until cancelled."""
        beats = 0
        while True:
            self._watch.take()
            now_ns = self._beat_ns = time.monotonic_ns()
            if beats % ADVANCE_BEATS == 0:
                self._advance(now_ns)
            if beats % SELDOM_BEATS == 0:
                self._seldom()
            if beats % ADVANCE_BEATS == 0 or self._watched():
                self._show(self._compose(now_ns))
            beats += 1
            # Just after the beat of the steps sockets, so that what is heard is soon shown.
            await asyncio.sleep(BEAT_SECONDS - time.monotonic() % BEAT_SECONDS + 0.01)

    def _advance(self, now_ns: int) -> None:
        self._sourcing.look(self._roster.subjects(), now_ns)
        self._ledger.advance(now_ns)
        self._books = None
        readings = self._watch.look.readings(now_ns)
        self._fullness.advance(self._roster.statuses(), now_ns, readings)

    def _compose(self, now_ns: int) -> Snapshot:
        aside = self._aside()
        engines = self._roster.statuses()
        if self._books is None or not self._books.are_of(engines):
            self._books = read_books(self._ledger, self._fullness, engines, now_ns)
        return compose(
            self._books,
            self._ledger.busy(now_ns),
            now_ns,
            self._wall.offset_seconds(now_ns, time.time()),
            devices=(*self._devices, *self._roster.devices()),
            look=self._watch.look,
            engines=engines,
            parents=parents,
            workers=aside.workers,
            collectors=(*aside.collectors, *self._roster.collectors()),
            router=aside.router,
            gpu_price=self._gpu_price,
            simulated=aside.simulated,
        )
