"""What callbacks of the event loop raise: said once and counted, where nobody else takes it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from disagg_exporter.collectors.health import CollectorHealth
from disagg_exporter.model import CollectorStatus

COLLECTOR = "callbacks"
QUIET_SECONDS = 60.0
"""So long after the last one, all is well again."""


class CallbackErrors:
    """The last guard of an event loop: the collector `callbacks`, there since the first failure."""

    def __init__(self, log: logging.Logger, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._log = log
        self._health = CollectorHealth(COLLECTOR, log)
        self._quiet_seconds = quiet_seconds
        self._quiet: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take whatever the loop's callbacks raise from now on."""
        loop.set_exception_handler(self._take)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector, once there was a failure."""
        return (self._health.status(),) if self._health.has_failed else ()

    def _take(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            self._log.debug("event loop: %s", context.get("message"))
            return
        self._health.fail(error)
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = loop.call_later(self._quiet_seconds, self._health.succeed)
