"""What supervision must do: done again until it succeeds, with descriptors kept back for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from disagg_exporter.collectors import CollectorHealth, explain, is_foreseen
from disagg_exporter.model import CollectorStatus

# A start takes most: log, empty input, a pipe of two, the process's pidfd, and one to look at it.
SPARE_DESCRIPTORS = 8

_NONE_LEFT = (errno.EMFILE, errno.ENFILE)

Result = TypeVar("Result")
RETRY_SECONDS = 0.5
Deed = Callable[[], object]


class DescriptorReserve:
    """Holds descriptors open that nobody needs, and gives them back to the system for a deed.

    Args:
        count: How many.
    """

    def __init__(self, count: int = SPARE_DESCRIPTORS) -> None:
        self._count = count
        self._spare: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Take again what is missing, as far as there is something to be had."""
        with contextlib.suppress(OSError):
            while len(self._spare) < self._count:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def close(self) -> None:
        """Hold none any more."""
        while self._spare:
            os.close(self._spare.pop())

    def run(self, deed: Callable[[], Result]) -> Result:
        """Do something; if no descriptor is left for it, once more with those kept back.

        What it raises is passed on; that a descriptor was missing shows in its `errno`.
        """
        try:
            return deed()
        except Exception as error:
            if getattr(error, "errno", None) not in _NONE_LEFT:
                raise
        with self._released():
            return deed()

    @contextlib.contextmanager
    def _released(self) -> Iterator[None]:
        self.close()
        try:
            yield
        finally:
            self.refill()


class SupervisionHealth:
    """What keeps supervision from its work just now; the collector `supervision`.

    Args:
        log: Logs when a reason comes, changes and goes.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._health = CollectorHealth("supervision", log, level=logging.ERROR)
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


class Retrier:
    """Does what must be done; what fails, for whatever reason, is done again until it succeeds.

    No callback of the loop may do anything else: an exception there would be lost, and with it
    the death or the deadline that it was called for.

    Args:
        owner: Whose deeds they are, for the log.
        health: Receives what fails.
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
            # Before it is said: without memory that may fail, too, and the deed must not be lost.
            self._waiting[what] = self._loop.call_later(RETRY_SECONDS, self._try, what, deed)
            self._health.failed(f"{self._owner}: {what}", error)
            return False
        self._health.over(f"{self._owner}: {what}")
        return True
