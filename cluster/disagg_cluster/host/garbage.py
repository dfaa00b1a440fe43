"""When Python collects cyclic garbage: rarely in a daemon, never while modules or JSON are read."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# Allocations between collections of the young generation, and young collections between those of
# older ones. Objects of a beat live for a second and form no cycles; when each step was an object,
# collection took a tenth of a busy daemon's time with Python's own 700.
_THRESHOLDS = (20_000, 20, 50)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable collection until the block ends, or until `rarely_collected`.

    Objects of modules are permanent: scanning them repeatedly was a tenth of a daemon's start.
    JSON of others may be nested down to the recursion limit: whatever a collection finalized there
    would fail, as finalizers have no stack left.
    """
    gc.disable()
    try:
        yield
    finally:
        # Not as it was before: another thread's block may have begun and ended meanwhile.
        gc.enable()


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect rarely until the block ends, and never scan the objects that exist now."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
