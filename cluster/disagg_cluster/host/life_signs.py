"""Tells the service manager how the daemon goes, as long as the daemon's loop comes round."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from disagg_cluster.host.service_manager import ServiceManager

_STATUS_SECONDS = 1.0
_EXTENSION_SECONDS = 30.0
"""How much time to end is asked for, three times as often as it runs out."""


class LifeSigns:
    """Signs of life at half the interval that the watchdog wants, only while all is well.

    They are given by a task of the daemon's own loop: a loop that is stuck gives none.

    Args:
        manager: Told.
        is_well: Whether what matters is alive, too.
        status: How it goes, in a line; nothing is told if it is empty.
    """

    def __init__(
        self, manager: ServiceManager, is_well: Callable[[], bool], status: Callable[[], str]
    ) -> None:
        self._manager = manager
        self._is_well = is_well
        self._status = status
        self._ending = False

    @contextlib.asynccontextmanager
    async def given(self) -> AsyncIterator[None]:
        """Give them until the block ends."""
        if not self._manager.listens:
            yield
            return
        tasks = [asyncio.create_task(self._tell())]
        if (seconds := self._manager.watchdog_seconds) is not None:
            tasks.append(asyncio.create_task(self._beat(seconds / 2)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self) -> None:
        """Tell that the daemon ends, and ask for time as long as it takes."""
        if not self._ending:
            self._ending = True
            self._manager.stopping()
            self._manager.extend_timeout(_EXTENSION_SECONDS)

    async def _beat(self, seconds: float) -> None:
        while True:
            if self._is_well():
                self._manager.alive()
            await asyncio.sleep(seconds)

    async def _tell(self) -> None:
        seconds = 0.0
        while True:
            if text := self._status():
                self._manager.status(text)
            await asyncio.sleep(_STATUS_SECONDS)
            seconds += _STATUS_SECONDS
            if self._ending and seconds >= _EXTENSION_SECONDS / 3:
                seconds = 0.0
                self._manager.extend_timeout(_EXTENSION_SECONDS)
