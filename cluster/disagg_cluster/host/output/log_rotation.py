"""Keeps the logs of running workers from filling the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from disagg_cluster.host.output.logs import recover_deleted, rotate
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
        writers: The processes that write them, by name; a log that is deleted is made anew.
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
        writers: Callable[[], Mapping[str, int]] = dict,
        every_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._logs = logs
        self._was_cut = was_cut
        self._writers = writers
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
        writers = self._writers()
        for worker, path in self._logs().items():
            # A hundred megabytes take a moment to copy: not in the loop.
            try:
                look = partial(_look_at, writers.get(worker), path, self._limit_bytes)
                cut = await loop.run_in_executor(None, look)
            except Exception as error:  # noqa: BLE001 - one log is not to keep the others growing
                problems[worker] = f"{worker}: {explain(error)}"
                continue
            if cut:
                self._was_cut(worker)


def _look_at(pid: int | None, path: Path, limit_bytes: int) -> bool:
    """Whether the log begins anew."""
    made_anew = pid is not None and not path.exists()
    recovered = pid is not None and recover_deleted(pid, path)
    return rotate(path, limit_bytes) or (recovered and made_anew)
