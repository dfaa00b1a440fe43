"""File descriptors kept back for what must be done even when there are none left."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

# A start takes most: log, empty input, a pipe of two, the process's pidfd, and one to look at it.
SPARE_DESCRIPTORS = 8

_NONE_LEFT = (errno.EMFILE, errno.ENFILE)

Result = TypeVar("Result")


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

        What it raises is passed on; that a descriptor was missing is told by its `errno`.
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
