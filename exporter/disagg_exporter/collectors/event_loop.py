"""Endless tasks of an event loop, restarted when they end; errors of its callbacks, counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from disagg_exporter.collectors.health import CollectorHealth
from disagg_exporter.model import CollectorStatus

_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from the first to the longest, in seconds."""

    first_seconds: float
    longest_seconds: float = 10.0

    def seconds(self, failures: int) -> float:
        """Return the wait after this many failures in a row; the first wait after none."""
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        longest = max(self.first_seconds, self.longest_seconds)
        return min(self.first_seconds * 2.0**doublings, longest)


COLLECTOR = "callbacks"
QUIET_SECONDS = 60.0
"""Time after the last error until the collector is healthy again."""


class CallbackErrors:
    """Last-resort handler of an event loop: collector `callbacks`, shown once one has failed."""

    def __init__(self, log: logging.Logger, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._log = log
        self._health = CollectorHealth(COLLECTOR, log)
        self._quiet_seconds = quiet_seconds
        self._quiet: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle all errors that the loop's callbacks raise from now on."""
        loop.set_exception_handler(self._handle)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector, once there was a failure."""
        return (self._health.status(),) if self._health.has_failed else ()

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            self._log.debug("event loop: %s", context.get("message"))
            return
        self._health.fail(error)
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = loop.call_later(self._quiet_seconds, self._health.succeed)


STEADY_SECONDS = 5.0
"""A task that has run for this long is healthy again."""


async def keep_running(
    run: Callable[[], Coroutine[None, None, None]],
    health: CollectorHealth,
    *,
    backoff: Backoff = Backoff(0.5),
    steady_seconds: float = STEADY_SECONDS,
) -> None:
    """Run a task that should never end, and restart it after a pause when it does; until cancelled.

    Args:
        run: Starts the task; it may be started again after any kind of end.
        health: Informed when it fails, and when it has run for a while again.
        backoff: The pauses.
        steady_seconds: How long that while is.
    """
    while True:
        task = asyncio.ensure_future(run())
        try:
            done, _ = await asyncio.wait([task], timeout=steady_seconds)
            if not done:
                health.succeed()
                await asyncio.wait([task])
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        # Checked on the task, not awaited: a task cancelled from within must not cancel us.
        error = None if task.cancelled() else task.exception()
        health.fail(error if isinstance(error, Exception) else "it has ended by itself")
        await asyncio.sleep(backoff.seconds(health.failures))
