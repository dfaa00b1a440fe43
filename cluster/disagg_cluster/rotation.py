"""Keeps the logs of running workers from filling the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from disagg_cluster.logs import rotate
from disagg_exporter.collectors import CollectorHealth, explain
from disagg_exporter.model import CollectorStatus

LOOK_SECONDS = 5.0
_MEGABYTE = 1_000_000


class Rotation:
    """Looks at all logs on a clock; each may hold so many megabytes, and so may its older parts.

    Args:
        logs: The logs of all workers, by name.
        was_cut: Told whose log begins anew.
        limit_megabytes: How long each may grow.
        log: Told of a log that cannot be rotated, once each time that begins.
        every_seconds: From one look to the next.
    """

    def __init__(
        self,
        logs: Callable[[], Mapping[str, Path]],
        was_cut: Callable[[str], None],
        limit_megabytes: int,
        log: logging.Logger,
        *,
        every_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._logs = logs
        self._was_cut = was_cut
        self._limit_bytes = limit_megabytes * _MEGABYTE
        self._every_seconds = every_seconds
        self._health = CollectorHealth(
            "log_rotation", log, recovered="all logs are kept short again", level=logging.ERROR
        )

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return how the last look at the logs went, collector `log_rotation`."""
        return (self._health.status(),)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with self._health.round() as problems:
                await self._look(problems)
            await asyncio.sleep(self._every_seconds)

    async def _look(self, problems: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        for worker, path in self._logs().items():
            # A hundred megabytes take a moment to copy: not in the loop.
            try:
                cut = await loop.run_in_executor(None, rotate, path, self._limit_bytes)
            except Exception as error:  # noqa: BLE001 - one log is not to keep the others growing
                problems[worker] = f"{worker}: {explain(error)}"
                continue
            if cut:
                self._was_cut(worker)
