"""Settings of this process by the C library: who reaps orphans, one heap for all threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_GET_CHILD_SUBREAPER = 37


def share_one_heap() -> None:
    """Have glibc serve all threads from one heap, before any of them is started.

    It would give each its own, of which some MiB stay with it for good; ours take turns anyway, by
    Python's lock. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def become_subreaper(wanted: bool = True) -> bool:
    """Ask the kernel for it, or not to be it any longer; whether it is done.

    It ends with this process: who is left then falls to the next above, and nobody is ended.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return bool(prctl(_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)


def is_subreaper() -> bool:
    """Whether orphans below us fall to us."""
    answer = ctypes.c_int()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and answer.value == 1


@contextmanager
def subreaping() -> Iterator[None]:
    """Be it until the block ends."""
    before = is_subreaper()
    become_subreaper()
    try:
        yield
    finally:
        become_subreaper(before)
