"""Brings what the sampler sees of the devices from its thread to the daemon's loop."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from disagg_cluster.nodeview import DeviceLook
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices import DeviceSource
from disagg_exporter.model import DeviceSweep
from disagg_exporter.sampler import Sampler

_MOST_WAITING = 600


class DeviceWatch:
    """The last look at the devices; every look goes to the ledger, too.

    The sampler leaves its sweeps here, and they are taken when somebody looks: the loop is not
    woken ten times a second for what it needs four times.

    Args:
        source: The devices; closed by the caller.
        ledger: Told of every sweep.
        wall: Unix seconds.
    """

    def __init__(
        self, source: DeviceSource, ledger: Ledger, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._wall = wall
        self._look = DeviceLook(source.name)
        # A loop that hangs for a minute loses the oldest: what is far behind cannot be booked.
        self._waiting: deque[tuple[DeviceSweep, float, float]] = deque(maxlen=_MOST_WAITING)

    @property
    def look(self) -> DeviceLook:
        """The last look at the devices."""
        self.take()
        return self._look

    def take(self) -> None:
        """Tell the ledger of the sweeps that have come."""
        while self._waiting:
            sweep, duration_seconds, wall_seconds = self._waiting.popleft()
            self._ledger.read(sweep)
            before = self._look.success_timestamp_seconds
            self._look = replace(
                self._look,
                sweep=sweep,
                duration_seconds=duration_seconds,
                success_timestamp_seconds=before if sweep.failures else wall_seconds,
            )

    @contextlib.contextmanager
    def running(self, interval_seconds: float) -> Iterator[None]:
        """Look on a clock until the block ends."""
        sampler = Sampler(self._source, interval_seconds, self._leave)
        sampler.start()
        try:
            yield
        finally:
            sampler.stop()

    def _leave(self, sweep: DeviceSweep, duration_seconds: float) -> None:
        self._waiting.append((sweep, duration_seconds, self._wall()))
