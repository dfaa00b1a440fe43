"""Passes device sweeps from the sampler's thread to the daemon's loop."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from disagg_cluster.telemetry.snapshot import LastSweep
from disagg_exporter.accounting import Ledger
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.devices.sampler import Sampler
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.model import DeviceFailure, DeviceSweep

_MOST_WAITING = 600
_SILENT_FAILURES = 3
"""A second of ingests: a device that answers every other time fills no log."""

_log = logging.getLogger("disagg_node")


class DeviceWatch:
    """The latest device sweep; every sweep also goes to the ledger.

    The sampler queues its sweeps here until `ingest` is called: the loop is not woken ten times a
    second for what it needs four times.

    Args:
        source: The devices; closed by the caller.
        ledger: Receives every sweep.
    """

    def __init__(self, source: DeviceSource, ledger: Ledger) -> None:
        self._source = source
        self._ledger = ledger
        self._last_sweep = LastSweep(source.name)
        self._health = CollectorHealth(source.name, _log, recovered="devices are read again")
        self._unread = CollectorHealth(
            source.name,
            _log,
            failing="not read: ",
            recovered="all devices are read again",
            silent_failures=_SILENT_FAILURES,
        )
        self._sampler: Sampler | None = None
        self._interval_seconds: float | None = None
        # A loop that hangs for a minute loses the oldest: sweeps that old cannot be attributed.
        self._waiting: deque[tuple[DeviceSweep, float, float]] = deque(maxlen=_MOST_WAITING)

    @property
    def last_sweep(self) -> LastSweep:
        """The last device sweep that was ingested."""
        return self._last_sweep

    def ingest(self) -> None:
        """Pass the queued sweeps to the ledger, and restart a sampler that has died."""
        self._keep_sampling()
        status = self._health.status()
        self._last_sweep = replace(
            self._last_sweep,
            failing=not status.success,
            unexpected_failures=status.unexpected_failures,
        )
        while self._waiting:
            sweep, duration_seconds, wall_seconds = self._waiting.popleft()
            before = self._last_sweep.success_timestamp_seconds
            self._last_sweep = replace(
                self._last_sweep,
                sweep=sweep,
                duration_seconds=duration_seconds,
                success_timestamp_seconds=before if sweep.failures else wall_seconds,
            )
            self._ledger.read(sweep)
            if not self._waiting:
                self._unread.report(_reasons(sweep.failures))

    @contextlib.contextmanager
    def running(self, interval_seconds: float) -> Iterator[None]:
        """Sample at this interval until the block ends."""
        self._interval_seconds = interval_seconds
        self._keep_sampling()
        try:
            yield
        finally:
            self._interval_seconds = None
            if self._sampler is not None:
                self._sampler.stop()

    def _keep_sampling(self) -> None:
        """Start the sampler's thread if none runs: the system may refuse one at times."""
        alive = self._sampler is not None and self._sampler.is_alive
        if self._interval_seconds is None or alive:
            return
        try:
            self._sampler = Sampler(self._source, self._interval_seconds, self._queue, self._health)
            self._sampler.start()
        except RuntimeError as error:
            self._health.fail(f"no thread is to be had for it: {error}")

    def _queue(self, sweep: DeviceSweep, duration_seconds: float) -> None:
        self._waiting.append((sweep, duration_seconds, time.time()))


def _reasons(failures: Iterable[DeviceFailure]) -> dict[str, str]:
    """Return why devices are not read, for the log: each reason with its devices."""
    devices: dict[str, list[str]] = {}
    for failure in failures:
        devices.setdefault(failure.why, []).append(failure.gpu)
    return {why: f"{', '.join(gpus)}: {why}" for why, gpus in devices.items()}
