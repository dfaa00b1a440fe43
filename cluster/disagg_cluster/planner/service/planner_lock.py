"""A lock file that allows only one planner of a cluster on a machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from disagg_exporter.errors import DisaggError


class PlannerRunsError(DisaggError):
    """Another planner holds the lock, or it cannot be taken; the text says which."""


@contextlib.contextmanager
def planner_lock(path: Path) -> Iterator[None]:
    """Hold the lock; the kernel releases it when the process dies, for any reason.

    Raises:
        PlannerRunsError: Another process holds it, or the file cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise PlannerRunsError(f"cannot lock {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            holder = f" (pid {text})" if text.isdigit() else ""
            raise PlannerRunsError(f"another planner{holder} holds {path}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
