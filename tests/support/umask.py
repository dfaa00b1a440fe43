"""The umask of this process, for a test of who may read what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set it, and set it back."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
