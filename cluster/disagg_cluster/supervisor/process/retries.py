"""What supervision must do: repeated until it succeeds, with descriptors held in reserve."""

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

# A start needs the most: log, empty input, a pipe of two, the process's pidfd, and one to check it.
SPARE_DESCRIPTORS = 8

_NONE_LEFT = (errno.EMFILE, errno.ENFILE)

Result = TypeVar("Result")
RETRY_SECONDS = 0.5
Deed = Callable[[], object]


class DescriptorReserve:
    """Holds spare descriptors open, and releases them for an action that finds none left.

    Args:
        count: How many.
    """

    def __init__(self, count: int = SPARE_DESCRIPTORS) -> None:
        self._count = count
        self._spare: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Reopen those that are missing, as far as the system has any."""
        with contextlib.suppress(OSError):
            while len(self._spare) < self._count:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def close(self) -> None:
        """Release all of them."""
        while self._spare:
            os.close(self._spare.pop())

    def run(self, deed: Callable[[], Result]) -> Result:
        """Run an action; if no descriptor is left for it, once more with the reserve released.

        Its exception is passed on; a missing descriptor shows in its `errno`.
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
    """What currently keeps supervision from its work; the collector `supervision`.

    Args:
        log: Logs when a reason appears, changes and disappears.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._health = CollectorHealth("supervision", log, level=logging.ERROR)
        self._problems: dict[str, str] = {}

    def failed(self, what: str, cause: Exception | str) -> None:
        """Record that something could not be done; the caller tries it again.

        Args:
            what: The worker and the action.
            cause: The reason.
        """
        if isinstance(cause, Exception):
            if not is_foreseen(cause):
                self._health.record_defect(cause)
            cause = explain(cause)
        self._problems[what] = f"{what}: {cause}"
        self._health.report(dict(self._problems))

    def over(self, what: str) -> None:
        """Record that something was done, or need not be done any more."""
        if self._problems.pop(what, None) is not None:
            self._health.report(dict(self._problems))

    def status(self) -> CollectorStatus:
        """Return the status: failed while anything that must be done has failed."""
        if not self._problems:
            self._health.succeed()
        return self._health.status()


class Retrier:
    """Does what must be done; what fails, for any reason, is repeated until it succeeds.

    No callback of the loop may do anything else: an exception there would be lost, and with it the
    death or the deadline that it was called for.

    Args:
        owner: The worker whose actions they are, for the log.
        health: Records what fails.
        reserve: Provides descriptors when none are left.
    """

    def __init__(self, owner: str, health: SupervisionHealth, reserve: DescriptorReserve) -> None:
        self._owner = owner
        self._health = health
        self._reserve = reserve
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    def run(self, what: str, deed: Deed) -> bool:
        """Run it now, and return whether it succeeded; otherwise repeat it later until it does.

        Args:
            what: For the log. A waiting action of this name is replaced.
            deed: May be repeated after it failed half way.
        """
        self.forget(what)
        return self._try(what, deed)

    def forget(self, what: str) -> None:
        """Drop the action that waits under this name."""
        waiting = self._waiting.pop(what, None)
        if waiting is not None:
            waiting.cancel()
            self._health.over(f"{self._owner}: {what}")

    def close(self) -> None:
        """Drop all waiting actions."""
        for what in tuple(self._waiting):
            self.forget(what)

    def _try(self, what: str, deed: Deed) -> bool:
        self._waiting.pop(what, None)
        try:
            self._reserve.run(deed)
        except Exception as error:  # noqa: BLE001 - no caller could handle it
            # Before reporting, which may fail without memory: the action must not be lost.
            self._waiting[what] = self._loop.call_later(RETRY_SECONDS, self._try, what, deed)
            self._health.failed(f"{self._owner}: {what}", error)
            return False
        self._health.over(f"{self._owner}: {what}")
        return True
