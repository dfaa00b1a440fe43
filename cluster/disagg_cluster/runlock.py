"""One daemon at a time in one run folder: a lock that the kernel lets go when its holder dies."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from disagg_cluster import procfs
from disagg_exporter.errors import DisaggError

# A worker that is just being started keeps the lock of a killed daemon until it runs.
_PATIENCE_SECONDS = 2.0


class RunLockError(DisaggError):
    """Another daemon runs in the folder; the text says which and how to end it."""


class RunLock:
    """The lock of one run folder; use it as a context manager.

    A process that is forked shares it until it runs its own program. So whoever gets the lock can
    be sure that every child of the daemon before is there to be seen.

    Raises:
        RunLockError: On entering, if another daemon holds it, or the folder or file cannot be made.
    """

    def __init__(self, path: Path, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._path = path
        self._patience_seconds = patience_seconds
        self._descriptor = -1

    def __enter__(self) -> RunLock:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RunLockError(
                f"cannot use {self._path.parent}: {error.strerror}; choose another folder with "
                "`run_dir:` in the node file"
            ) from error
        until = time.monotonic() + self._patience_seconds
        while not _lock(self._descriptor):
            pid = holder(self._path)
            if pid is not None or time.monotonic() > until:
                os.close(self._descriptor)
                raise RunLockError(_held_text(self._path.parent, pid))
            threading.Event().wait(0.01)
        mine = f"{os.getpid()} {procfs.start_ticks(os.getpid())}\n"
        # On a full disk it stays without a name: `stop` cannot find us then, the lock still holds.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, mine.encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def holder(path: Path) -> int | None:
    """The daemon that holds a lock; None if nobody does, or nobody who is still there."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        pid, ticks = (int(word) for word in os.read(descriptor, 100).split())
    except ValueError:
        return None
    finally:
        os.close(descriptor)
    return pid if procfs.is_alive(pid) and procfs.start_ticks(pid) == ticks else None


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held_text(folder: Path, pid: int | None) -> str:
    who = "another disagg-node" if pid is None else f"another disagg-node (pid {pid})"
    return (
        f"{who} runs in {folder}; `disagg-node stop --run-dir {folder}` ends it, "
        "another run_dir in the node file lets both run"
    )
