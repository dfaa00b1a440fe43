"""What supervision must do: done again until it succeeds, said once, and shown while it fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from disagg_cluster.host.descriptor_reserve import DescriptorReserve
from disagg_exporter.collectors import CollectorHealth, explain, is_foreseen
from disagg_exporter.model import CollectorStatus

RETRY_SECONDS = 0.5

Deed = Callable[[], object]


class SupervisionHealth:
    """What keeps supervision from its work just now; the collector `supervision`.

    Args:
        log: Told when a reason comes, changes and goes.
        wall: Unix seconds.
    """

    def __init__(self, log: logging.Logger, wall: Callable[[], float] = time.time) -> None:
        self._health = CollectorHealth("supervision", log, level=logging.ERROR, wall=wall)
        self._problems: dict[str, str] = {}

    def failed(self, what: str, cause: Exception | str) -> None:
        """Take that something could not be done; whoever calls tries it again.

        Args:
            what: Whose and what.
            cause: The reason.
        """
        if isinstance(cause, Exception):
            if not is_foreseen(cause):
                self._health.take_defect(cause)
            cause = explain(cause)
        self._problems[what] = f"{what}: {cause}"
        self._health.report(dict(self._problems))

    def over(self, what: str) -> None:
        """Take that something was done, or is not to be done any more."""
        if self._problems.pop(what, None) is not None:
            self._health.report(dict(self._problems))

    def status(self) -> CollectorStatus:
        """Failed while anything that is to be done could not be."""
        if not self._problems:
            self._health.succeed()
        return self._health.status()


class Retried:
    """Does what must be done; what fails, for whatever reason, is done again until it succeeds.

    No callback of the loop may do anything else: an exception there would be lost, and with it
    the death or the deadline that it was called for.

    Args:
        owner: Whose deeds they are, for the log.
        health: Told of what fails.
        reserve: Gives descriptors when there are none left.
    """

    def __init__(self, owner: str, health: SupervisionHealth, reserve: DescriptorReserve) -> None:
        self._owner = owner
        self._health = health
        self._reserve = reserve
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    def run(self, what: str, deed: Deed) -> bool:
        """Do it now, and say whether that went well; else later, again and again.

        Args:
            what: For the log. A deed that waits under this name is replaced.
            deed: May be done again after it failed half way.
        """
        self.forget(what)
        return self._try(what, deed)

    def forget(self, what: str) -> None:
        """Do no more what waits under this name."""
        waiting = self._waiting.pop(what, None)
        if waiting is not None:
            waiting.cancel()
            self._health.over(f"{self._owner}: {what}")

    def close(self) -> None:
        """Do nothing more."""
        for what in tuple(self._waiting):
            self.forget(what)

    def _try(self, what: str, deed: Deed) -> bool:
        self._waiting.pop(what, None)
        try:
            self._reserve.run(deed)
        except Exception as error:  # noqa: BLE001 - there is nobody above to take it
            self._health.failed(f"{self._owner}: {what}", error)
            self._waiting[what] = self._loop.call_later(RETRY_SECONDS, self._try, what, deed)
            return False
        self._health.over(f"{self._owner}: {what}")
        return True
