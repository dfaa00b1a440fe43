"""One heap for all threads of the daemon."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Have glibc serve all threads from one heap, before any of them is started.

    It would give each its own, of which some MiB stay with it for good; ours take turns anyway, by
    Python's lock. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
