"""Writes files atomically, and into the intended folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from disagg_cluster.host.files.private_files import FOLDER_FLAGS
from disagg_exporter.errors import DisaggError

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
Place = Callable[[Path], Path]
"""Maps a file's path to the path by which it is written."""


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file under a temporary name beside its path, then rename it.

    Not synced: after a power cut the file may be old or empty. If something lies at the temporary
    name, a link is not followed, and a hard link to another file is not written to.

    Raises:
        OSError: It cannot be written; the previous file is unchanged.
    """
    unfinished, descriptor = _open_unfinished(path, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    unfinished.replace(path)


def write_for_all(path: Path, data: bytes) -> None:
    """Write a file as `write_whole` does, but readable for all, whatever the umask.

    For programs of other users: Prometheus skips silently what it may not read.

    Raises:
        OSError: It cannot be written; the previous file is unchanged.
    """
    unfinished, descriptor = _open_unfinished(path, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, 0o644)
    unfinished.replace(path)


def make_folder_for_all(path: Path) -> None:
    """Make a folder and those above it, unless they exist, open to all, whatever the umask.

    Raises:
        OSError: It cannot be made.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        folder.chmod(0o755)


def check_replaceable(path: Path) -> None:
    """Start writing a file as `write_whole` does, and clean up again.

    Raises:
        OSError: It could not be written now.
    """
    unfinished, descriptor = _open_unfinished(path, 0o600)
    os.close(descriptor)
    unfinished.unlink()


def _open_unfinished(path: Path, mode: int) -> tuple[Path, int]:
    unfinished = path.with_name(f".{path.name}.part")
    if not unfinished.is_symlink():
        unfinished.unlink(missing_ok=True)
    return unfinished, os.open(unfinished, _FLAGS, mode)


def put_aside(path: Path, log: logging.Logger) -> None:
    """Rename an untrusted file, if it exists, to `<name>.rejected`."""
    try:
        with suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.rejected"))
    except OSError as error:
        log.warning("cannot keep it aside: %s", error.strerror)


class HeldFolder:
    """The folder that was at a path when it was held; before `hold`, the one that is there now.

    Somebody may move it and put a link to another daemon's folder in its place. Files written by
    `at` then go into the held folder, or fail if it was removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def hold(self, name: str, mine: os.stat_result) -> None:
        """Hold the folder at its path, in which the file of this name is known to be ours.

        Raises:
            DisaggError: Another file has that name there, so the folder is not the intended one.
            OSError: It cannot be opened. In both cases the previously held folder stays held.
        """
        descriptor = os.open(os.path.realpath(self._path), FOLDER_FLAGS)
        try:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not os.path.samestat(found, mine):
                raise DisaggError(f"somebody has just replaced {self._path}")
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor

    def at(self, path: Path) -> Path:
        """Return the path by which a file in the held folder is written."""
        if self._descriptor < 0:
            return path
        self._renew()
        return Path(f"/proc/self/fd/{self._descriptor}/{path.name}")

    def _renew(self) -> None:
        """Reopen the same folder as it is mounted now, which may be read-only."""
        try:
            fresh = os.open(os.path.realpath(self._path), FOLDER_FLAGS)
        except OSError:
            return
        try:
            if os.path.samestat(os.fstat(fresh), os.fstat(self._descriptor)):
                os.dup2(fresh, self._descriptor, inheritable=False)
        finally:
            os.close(fresh)

    def close(self) -> None:
        """Release the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
