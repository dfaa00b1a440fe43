"""Reads the devices on a separate thread and clock: a hanging driver blocks nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from disagg_exporter.collectors import Backoff, CollectorHealth
from disagg_exporter.devices.source import DeviceSource
from disagg_exporter.model import DeviceSweep

# Most delay before a failed sweep is repeated, so that the failure alone makes no reading stale.
LONGEST_WAIT_SECONDS = 5.0


class Sampler:
    """Sweeps a source every `interval_seconds` and delivers each sweep and its duration.

    `deliver(sweep, duration_seconds)` is called on the sampler's thread. A sweep that takes longer
    than the interval delays the next one; sweeps never queue up. When the driver hangs, deliveries
    stop and the readings grow stale, which makes the hang visible. A sweep that fails is reported
    to `health`, and the next one comes a little later each time.
    """

    def __init__(
        self,
        source: DeviceSource,
        interval_seconds: float,
        deliver: Callable[[DeviceSweep, float], None],
        health: CollectorHealth,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._source = source
        self._interval_ns = round(interval_seconds * 1e9)
        self._deliver = deliver
        self._health = health
        self._backoff = Backoff(interval_seconds, LONGEST_WAIT_SECONDS)
        self._clock_ns = clock_ns
        self._stopping = threading.Event()
        # A daemon thread: a driver that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="device-sampler", daemon=True)

    def start(self) -> None:
        """Start sweeping."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def stop(self, deadline_seconds: float = 2.0) -> bool:
        """End after the current sweep; return False if the driver did not return in time."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due_ns = self._clock_ns()
        while not self._stopping.is_set():
            with self._health.round():
                began_ns = self._clock_ns()
                sweep = self._source.sweep(began_ns)
                self._deliver(sweep, (self._clock_ns() - began_ns) / 1e9)
            if self._health.failures:
                self._stopping.wait(self._backoff.seconds(self._health.failures))
            due_ns = max(due_ns + self._interval_ns, self._clock_ns())
            self._stopping.wait(max(due_ns - self._clock_ns(), 0) / 1e9)
