"""One daemon at a time in one run folder: a lock that the kernel releases when its holder dies.

The lock file alone would be lost with the folder; `RunDirClaim` still holds then.
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

# A worker that is just being started holds the lock of a killed daemon until it executes.
_PATIENCE_SECONDS = 2.0

_log = logging.getLogger("disagg_node")


class RunLockError(DisaggError):
    """Another daemon runs in the folder; the text says which and how to end it."""


class RunLock:
    """The lock of one run folder; use it as a context manager.

    Args:
        path: Its file.
        patience_seconds: How long to wait for a holder that is about to release it.
        signs: Whether its file names us at once; else `sign` writes it. Until then it names the
            previous holder, permanently if we die before.

    A forked process shares it until it executes its own program. So a new holder can be sure that
    every child of the previous daemon is visible.

    Raises:
        RunLockError: On entering, if another daemon holds it, or the folder or file cannot be
            created or is not ours alone.
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
        """The previous holder's `signature`; empty if it wrote none, None without a file."""

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
        """What we write into it; unique within this boot."""
        return f"{os.getpid()} {procfs.start_ticks(os.getpid())}"

    @property
    def is_in_place(self) -> bool:
        """Whether the file at its path is the one that we hold."""
        return identity_of(self._path) == _identity(self._descriptor)

    def restore(self) -> None:
        """Recreate folder and file and lock it, after somebody removed or replaced them.

        Raises:
            RunLockError: The folder or file cannot be created, is not ours alone, or another daemon
                has locked the present one; what we held stays held.
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
        """Return the path by which a file of the run folder is written: in the locked folder."""
        return self._folder.at(path)

    def answer(self) -> None:
        """Answer clients that ask whether we are here; to be called now and then."""
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
        """Lock the file at our path: return None on success, else the holder, 0 if unknown."""
        try:
            self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except NotPrivateError as error:
            raise RunLockError(f"cannot use {self._path}: {error.strerror}") from error
        except OSError as error:
            raise RunLockError(_unusable_text(self._path.parent, error)) from error
        if not _lock(self._descriptor):
            self._close_lock()
            return holder(self._path) or 0
        # The locked file must be the one that the next daemon will find there.
        if not self.is_in_place:
            self._close_lock()
            return 0
        return None

    def sign(self) -> None:
        """Write our signature; on a full disk the kernel's list of locks still names us."""
        mine = f"{self.signature}\n".encode()
        with suppress(OSError):
            # Overwritten first: a file that has its block needs no room on the disk.
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
    """Return the living daemon that holds a lock, even if its file was removed; None if none."""
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
