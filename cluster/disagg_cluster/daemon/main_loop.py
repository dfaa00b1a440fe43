"""The main loop, which advances the accounting and renews the snapshot, and background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace

from disagg_cluster.host.processes.process_table import parents
from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_cluster.telemetry.gpu_processes import KnownParents
from disagg_cluster.telemetry.snapshot import (
    STALE_SECONDS,
    AccountingView,
    WallClock,
    compose,
    read_accounting,
)
from disagg_cluster.telemetry.source_selection import SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CollectorHealth, explain, keep_running
from disagg_exporter.collectors.health import FailureCounts
from disagg_exporter.model import (
    CollectorStatus,
    Device,
    EngineStatus,
    FrontCounts,
    GpuPrice,
    Snapshot,
)
from disagg_exporter.serving.requests import ModelRequests

BackgroundTask = Callable[[], Coroutine[None, None, None]]
"""Starts a task that runs forever and can be restarted."""


class BackgroundTasks:
    """The daemon's background tasks; one that ends is logged, reported and restarted."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._health: tuple[CollectorHealth, ...] = ()

    @contextlib.asynccontextmanager
    async def running(self, parts: Mapping[str, BackgroundTask]) -> AsyncIterator[None]:
        """Run them, by name, until the block ends."""
        self._health = tuple(
            CollectorHealth(f"task:{name}", self._log, recovered="runs again") for name in parts
        )
        tasks = [
            asyncio.create_task(keep_running(run, health), name=name)
            for (name, run), health in zip(parts.items(), self._health, strict=True)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collectors `task:<part>` of tasks that have ever failed."""
        return tuple(health.status() for health in self._health if health.has_failed)


_log = logging.getLogger("disagg_node")

# Interval of the fast gauges under frequent scraping (otherwise the loop ticks only when the
# accounting advances), and the number of ticks per advance and per upkeep.
TICK_SECONDS = 0.25
ADVANCE_TICKS = 4
UPKEEP_TICKS = 20


class MainLoop:
    """Advances the accounting and keeps the snapshot current.

    Args:
        ledger, capacity_model: The accounting.
        registry: All engines.
        watch: The readings of the devices.
        devices: The node's own devices.
        node_status: The state apart from devices and engines, given the time and the offset of Unix
            time to it.
        show: Called with each new snapshot.
        watched: Whether scrapes are frequent enough to renew the snapshot at every tick; otherwise
            only when the accounting has advanced.
        upkeep: Called every few seconds.
        sourcing: Selects each engine's source.
        inherit: Called once a second with all engines, to share what is known of similar ones.
        save: Saves the accounting, given the time and the offset of Unix time to it; a new state is
            shown only if this returns True.
        fronts: User requests counted by routers and frontends.
        gpu_price: The price of a GPU.
    """

    def __init__(
        self,
        ledger: Ledger,
        capacity_model: CapacityModel,
        registry: EngineRegistry,
        watch: DeviceWatch,
        devices: Callable[[], Sequence[Device]],
        *,
        node_status: Callable[[int, float], Snapshot],
        show: Callable[[Snapshot], None],
        watched: Callable[[], bool],
        upkeep: Callable[[], None],
        sourcing: SourceSelection,
        inherit: Callable[[Sequence[EngineStatus], int], None],
        save: Callable[[int, float], bool],
        fronts: Callable[[], Sequence[FrontCounts]] = tuple,
        gpu_price: GpuPrice | None = None,
    ) -> None:
        self._ledger = ledger
        self._capacity_model = capacity_model
        self._registry = registry
        self._watch = watch
        self._devices = devices
        self._node_status = node_status
        self._show = show
        self._failures = FailureCounts()
        self._is_watched = watched
        self._do_upkeep = upkeep
        self._save = save
        self._gpu_price = gpu_price
        self._sourcing = sourcing
        self._inherit = inherit
        self._fronts = fronts
        self._requests = ModelRequests()
        self._parents = KnownParents(parents)
        self._accounting, self._capacity, self._serving, self._shown, self._upkeep = (
            CollectorHealth(name, _log)
            for name in ("accounting", "capacity", "requests", "snapshot", "upkeep")
        )
        self._view: AccountingView | None = None
        self._is_outdated = True
        self._view_ns = 0
        self._wall = WallClock()
        self._tick_ns = time.monotonic_ns()

    def age_seconds(self) -> float:
        """Seconds since the last tick; much more than `TICK_SECONDS` if the loop hangs."""
        return (time.monotonic_ns() - self._tick_ns) / 1e9

    def rest_seconds(self) -> float:
        """Seconds between ticks; without frequent scraping, until the accounting advances."""
        return TICK_SECONDS * (1 if self._is_watched() else ADVANCE_TICKS)

    def resume(self, wall_offset_seconds: float) -> None:
        """Keep the previous daemon's Unix-time offset, so that published times do not shift."""
        self._wall.resume(wall_offset_seconds)

    def wall_offset_seconds(self) -> float:
        """Return Unix time minus monotonic time."""
        # Both clocks are read together: the duration of a round must not look like a clock jump.
        return self._wall.offset_seconds(time.monotonic_ns(), time.time())

    async def run(self) -> None:
        """Tick until cancelled."""
        ticks = 0
        while True:
            self.tick(ticks)
            # Just after the steps sockets are polled, so that new records show up soon.
            rest_seconds = self.rest_seconds()
            await asyncio.sleep(rest_seconds - time.monotonic() % rest_seconds + 0.01)
            ahead = round(rest_seconds / TICK_SECONDS)
            ticks += ahead - ticks % ahead

    def tick(self, number: int) -> None:
        """One tick; a failing part is logged, reported and retried while the others go on."""
        now_ns = self._tick_ns = time.monotonic_ns()
        advancing = number % ADVANCE_TICKS == 0
        with self._accounting.round() if advancing else self._accounting.guard() as problems:
            self._watch.ingest()
            if problems is not None:
                problems |= self._advance(now_ns)
        if advancing:
            with self._capacity.round():
                readings = self._watch.last_sweep.readings(now_ns)
                engines = self._registry.statuses()
                self._capacity_model.advance(engines, now_ns, readings)
                self._inherit(engines, now_ns)
            with self._serving.round():
                self._requests.ingest(self._registry.statuses(), self._fronts(), now_ns)
        if number % UPKEEP_TICKS == 0:
            with self._upkeep.round():
                self._do_upkeep()
        if advancing or self._is_watched():
            with self._shown.round():
                self._publish(now_ns)

    def _publish(self, now_ns: int) -> None:
        try:
            snapshot = self._compose(now_ns)
        except Exception as error:
            self._shown.fail(error)
            self._show_with_failures(self._without_measurements(now_ns))
            raise
        self._show_with_failures(snapshot)

    def _show_with_failures(self, snapshot: Snapshot) -> None:
        failures = self._failures.ingest(snapshot.collectors)
        self._show(replace(snapshot, unexpected_failures=failures))

    def _without_measurements(self, now_ns: int) -> Snapshot:
        """The part of a snapshot that needs no measurements: workers and collectors."""
        certain = self._node_status(now_ns, self.wall_offset_seconds())
        own = (self._accounting, self._capacity, self._serving, self._shown, self._upkeep)
        collectors = (
            self._watch.last_sweep.status(now_ns),
            *certain.collectors,
            *self._registry.collectors(),
            *(health.status() for health in own),
        )
        return replace(certain, collectors=collectors)

    def _advance(self, now_ns: int) -> Mapping[str, str]:
        """Account up to now; return the problems by engine."""
        errors = self._sourcing.select(self._registry.source_candidates(), now_ns)
        for error in errors.values():
            self._accounting.record_defect(error)
        self._ledger.advance(now_ns)
        self._is_outdated = True
        return {engine: f"{engine}: {explain(error)}" for engine, error in errors.items()}

    def _compose(self, now_ns: int) -> Snapshot:
        certain, engines = self._without_measurements(now_ns), self._registry.statuses()
        if self._is_outdated or self._view is None or not self._view.is_of(engines):
            # A published counter that was not saved would be higher than our successor's: every
            # `increase()` across our death would then count the difference twice.
            self._is_outdated = not self._save(now_ns, self.wall_offset_seconds())
            if not self._is_outdated:
                self._view = read_accounting(self._ledger, self._capacity_model, engines, now_ns)
                self._view_ns = now_ns
        if self._view is None:
            return certain
        self._parents.prune(self._watch.last_sweep.readings(now_ns))
        snapshot = compose(
            certain,
            self._view,
            self._ledger.fast_gauges(now_ns),
            devices=(*self._devices(), *self._registry.devices()),
            last_sweep=self._watch.last_sweep,
            engines=engines,
            parents=self._parents,
            gpu_price=self._gpu_price,
            left_out_engines=self._registry.left_out,
            requests=self._requests.accounts(),
        )
        if self._is_outdated:
            # Values disappear soon instead of freezing.
            until_ns = self._view_ns + round(STALE_SECONDS * 1e9)
            snapshot = replace(snapshot, fresh_until_ns=until_ns)
        return snapshot
