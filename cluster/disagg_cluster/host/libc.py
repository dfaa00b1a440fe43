"""Process settings through the C library: reaping of orphans, one heap for all threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_GET_CHILD_SUBREAPER = 37


def share_one_heap() -> None:
    """Make glibc serve all threads from one heap; to be called before any thread starts.

    By default each thread gets its own heap, which keeps some MiB for good; our threads alternate
    anyway, because of Python's lock. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def become_subreaper(wanted: bool = True) -> bool:
    """Set or clear the subreaper attribute of this process; return whether that succeeded.

    It ends with this process: remaining children then fall to the next ancestor, and none is
    killed.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return bool(prctl(_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)


def is_subreaper() -> bool:
    """Return whether orphans below us are reparented to us."""
    answer = ctypes.c_int()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and answer.value == 1


@contextmanager
def subreaping() -> Iterator[None]:
    """Be a subreaper until the block ends."""
    before = is_subreaper()
    become_subreaper()
    try:
        yield
    finally:
        become_subreaper(before)
