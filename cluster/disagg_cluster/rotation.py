"""Keeps the logs of running workers from filling the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from disagg_cluster.logs import LogError, rotate

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
        self._log = log
        self._every_seconds = every_seconds
        self._complaints: dict[str, str] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            for worker, path in self._logs().items():
                # A hundred megabytes take a moment to copy: not in the loop.
                cut, why = await loop.run_in_executor(None, _try, path, self._limit_bytes)
                if cut:
                    self._was_cut(worker)
                if why and why != self._complaints.get(worker):
                    self._log.error("%s: %s", worker, why)
                self._complaints[worker] = why
            await asyncio.sleep(self._every_seconds)


def _try(path: Path, limit_bytes: int) -> tuple[bool, str]:
    try:
        return rotate(path, limit_bytes), ""
    except LogError as error:
        return False, str(error)
