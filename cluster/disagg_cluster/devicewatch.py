"""Brings what the sampler sees of the devices from its thread to the daemon's loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from disagg_cluster.nodeview import DeviceLook
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices import DeviceSource
from disagg_exporter.model import DeviceSweep
from disagg_exporter.sampler import Sampler


class DeviceWatch:
    """The last look at the devices; every look goes to the ledger, too.

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

    @property
    def look(self) -> DeviceLook:
        """The last look at the devices."""
        return self._look

    @contextlib.contextmanager
    def running(self, loop: asyncio.AbstractEventLoop, interval_seconds: float) -> Iterator[None]:
        """Look on a clock until the block ends."""

        def seen_elsewhere(sweep: DeviceSweep, duration_seconds: float) -> None:
            # The loop may be closed already when the daemon ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._seen, sweep, duration_seconds)

        sampler = Sampler(self._source, interval_seconds, seen_elsewhere)
        sampler.start()
        try:
            yield
        finally:
            sampler.stop()

    def _seen(self, sweep: DeviceSweep, duration_seconds: float) -> None:
        self._ledger.read(sweep)
        before = self._look.success_timestamp_seconds
        self._look = replace(
            self._look,
            sweep=sweep,
            duration_seconds=duration_seconds,
            success_timestamp_seconds=before if sweep.failures else self._wall(),
        )
