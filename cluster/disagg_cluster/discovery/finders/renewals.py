"""How long ago files were last renewed by the processes that own them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple


class _Renewal(NamedTuple):
    """What a file looked like, and when it came to look so, by the monotonic clock."""

    mtime_ns: int
    inode: int
    seconds: float


class FileRenewals:
    """The ages of files since they last changed, by the monotonic clock.

    The wall clock may step, and that of a shared folder's server may be another: both would keep an
    ended process's file young, or make a live one's old. So the wall clock counts only where a file
    is seen for the first time; one that is then dated in the future is taken for new.

    Args:
        wall: Clock in seconds that files are dated by.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self._wall, self._clock = wall, clock
        self._known: dict[str, _Renewal] = {}
        self._seen: dict[str, _Renewal] = {}

    def age_seconds(self, path: str, found: os.stat_result) -> float:
        """Return the age of a file that is there now."""
        now_seconds, known = self._clock(), self._known.get(path)
        if known is None:
            age_seconds = max(self._wall() - found.st_mtime, 0.0)
        elif (known.mtime_ns, known.inode) == (found.st_mtime_ns, found.st_ino):
            age_seconds = now_seconds - known.seconds
        else:
            age_seconds = 0.0
        self._seen[path] = _Renewal(found.st_mtime_ns, found.st_ino, now_seconds - age_seconds)
        return age_seconds

    def forget_others(self) -> None:
        """Forget the files whose age was not asked for since the last call."""
        self._known, self._seen = self._seen, {}
