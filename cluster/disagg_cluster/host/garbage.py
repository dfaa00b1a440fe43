"""When Python looks for cyclic garbage: not while modules are loaded, and rarely in a daemon."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# New objects since the last look, and how many looks at the young until the older are looked at.
# What a beat makes lives for a second and is no cycle; when each step was an object, the looking
# was a tenth of a busy daemon's time with Python's own 700.
_THRESHOLDS = (20_000, 20, 50)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Look for none until the block ends, or until `rarely_collected`.

    What modules make stays: looking at it again and again was a tenth of a daemon's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Look rarely until the block ends, and never at what is there now."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
