"""One daemon at a time in one run folder: a lock that the kernel lets go when its holder dies.

The lock alone would go with the folder; `RunDirClaim` holds on then.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from disagg_cluster.host.files.atomic_write import HeldFolder
from disagg_cluster.host.files.private_files import (
    NotPrivateError,
    UnsafeDirError,
    make_private,
    open_private,
)
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.run_dir.claim import RunDirClaim, claim_holder, flock_holder
from disagg_cluster.host.run_dir.layout import is_ours
from disagg_exporter.errors import DisaggError
from disagg_exporter.steps.local_sockets import identity_of

# A worker that is just being started keeps the lock of a killed daemon until it runs.
_PATIENCE_SECONDS = 2.0

_log = logging.getLogger("disagg_node")


class RunLockError(DisaggError):
    """Another daemon runs in the folder; the text says which and how to end it."""


class RunLock:
    """The lock of one run folder; use it as a context manager.

    Args:
        path: Its file.
        patience_seconds: How long to wait for a holder that is none any more.
        signs: Whether its file says at once who holds it; else `sign` does. Until then it says who
            held it before, as it does for good if we die meanwhile.

    A process that is forked shares it until it runs its own program. So whoever gets the lock can
    be sure that every child of the daemon before is there to be seen.

    Raises:
        RunLockError: On entering, if another daemon holds it, or the folder or file cannot be made
            or is not ours alone.
    """

    def __init__(
        self, path: Path, patience_seconds: float = _PATIENCE_SECONDS, *, signs: bool = True
    ) -> None:
        self._signs = signs
        self._path = path
        self._patience_seconds = patience_seconds
        self._descriptor = -1
        self._presence = RunDirClaim(path.parent)
        self._folder = HeldFolder(path.parent)
        self.predecessor: str | None = ""
        """The `signature` of the one that held it before us; empty if it wrote none, None if no
        file was there."""

    def __enter__(self) -> RunLock:
        until = time.monotonic() + self._patience_seconds
        try:
            self._make_folder()
            was_there = os.path.lexists(self._path)
            while (held := self._take()) is not None:
                if held or time.monotonic() > until:
                    raise RunLockError(_held_text(self._path.parent, held or None))
                threading.Event().wait(0.01)
            self._hold_folder()
            if (pid := self._presence.take()) is not None:
                raise RunLockError(_held_text(self._path.parent, pid))
            written = os.pread(self._descriptor, 100, 0).decode(errors="replace").strip()
            self.predecessor = written if was_there else None
        except BaseException:
            self._close()
            raise
        if self._signs:
            self.sign()
        return self

    def __exit__(self, *_: object) -> None:
        self._presence.close()
        self._close()

    @property
    def signature(self) -> str:
        """What we write into it: nobody else of this boot writes the same."""
        return f"{os.getpid()} {procfs.start_ticks(os.getpid())}"

    @property
    def is_in_place(self) -> bool:
        """Whether the file at its path is the one that we hold."""
        return identity_of(self._path) == _identity(self._descriptor)

    def restore(self) -> None:
        """Make folder and file anew and lock it, after somebody removed or replaced them.

        Raises:
            RunLockError: The folder or file cannot be made, is not ours alone, or another daemon
                has locked what is there now; we still hold what we held.
        """
        self._make_folder()
        old, self._descriptor = self._descriptor, -1
        try:
            held = self._take()
            if held is not None:
                raise RunLockError(_held_text(self._path.parent, held or None))
            self._hold_folder()
        except BaseException:
            self._close_lock()
            self._descriptor = old
            raise
        os.close(old)
        self.sign()

    def at(self, path: Path) -> Path:
        """By which path a file of the run folder is written: that of the folder that we locked."""
        return self._folder.at(path)

    def answer(self) -> None:
        """Answer those who ask whether we are here; to be called now and then."""
        self._presence.answer()

    def _make_folder(self) -> None:
        try:
            for note in make_private(self._path.parent, is_ours):
                _log.warning("run folder: %s", note)
        except UnsafeDirError as error:
            raise RunLockError(f"cannot use the run folder: {error} (`run_dir:`)") from error
        except OSError as error:
            raise RunLockError(_unusable_text(self._path.parent, error)) from error

    def _hold_folder(self) -> None:
        try:
            self._folder.hold(self._path.name, os.fstat(self._descriptor))
        except OSError as error:
            raise RunLockError(_unusable_text(self._path.parent, error)) from error

    def _take(self) -> int | None:
        """Lock the file at our path: None once it is done, else who holds it, 0 if unknown."""
        try:
            self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except NotPrivateError as error:
            raise RunLockError(f"cannot use {self._path}: {error.strerror}") from error
        except OSError as error:
            raise RunLockError(_unusable_text(self._path.parent, error)) from error
        if not _lock(self._descriptor):
            self._close_lock()
            return holder(self._path) or 0
        # What we have locked must be what the next daemon will find there.
        if not self.is_in_place:
            self._close_lock()
            return 0
        return None

    def sign(self) -> None:
        """Write down who we are; on a full disk the kernel's list of locks still names us."""
        mine = f"{self.signature}\n".encode()
        with suppress(OSError):
            # Written over first: a file that has its block needs no room on the disk.
            os.pwrite(self._descriptor, mine, 0)
            os.ftruncate(self._descriptor, len(mine))

    def _close(self) -> None:
        self._folder.close()
        self._close_lock()

    def _close_lock(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def holder(path: Path) -> int | None:
    """The daemon that holds a lock, or held one there that was removed; None if none is alive."""
    return _file_holder(path) or claim_holder(path.parent)


def _file_holder(path: Path) -> int | None:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        text = os.read(descriptor, 100)
        listed = flock_holder(os.fstat(descriptor))
    finally:
        os.close(descriptor)
    try:
        pid, ticks = (int(word) for word in text.split())
    except ValueError:
        pid, ticks = 0, None
    if pid > 0 and procfs.is_alive(pid) and procfs.start_ticks(pid) == ticks:
        return pid
    return listed if listed is not None and procfs.is_alive(listed) else None


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _unusable_text(folder: Path, error: OSError) -> str:
    return (
        f"cannot use {folder}: {error.strerror}; choose another folder with `run_dir:` in the "
        "node file"
    )


def _held_text(folder: Path, pid: int | None) -> str:
    who = "another disagg-node" if pid is None else f"another disagg-node (pid {pid})"
    return (
        f"{who} runs in {folder}; `disagg-node stop --run-dir {folder}` ends it, "
        "another run_dir in the node file lets both run"
    )
