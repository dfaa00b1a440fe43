"""Writing files: whole, and into the very folder that was meant."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from disagg_exporter.errors import DisaggError

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
Place = Callable[[Path], Path]
"""By which path a file is written that belongs at a path."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file beside its place, then move it there.

    Not synced: what a power cut leaves may be old or empty. Of what somebody laid where the
    unfinished file goes, a link is not followed, and a second name of another file not written to.

    Raises:
        OSError: It cannot be written; the file that was there still is.
    """
    unfinished, descriptor = _begun(path, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    unfinished.replace(path)


def check_writable(path: Path) -> None:
    """Begin to write a file as `write_whole` does, and leave all as it was.

    Raises:
        OSError: It could not be written now.
    """
    unfinished, descriptor = _begun(path, 0o600)
    os.close(descriptor)
    unfinished.unlink()


def _begun(path: Path, mode: int) -> tuple[Path, int]:
    unfinished = path.with_name(f".{path.name}.part")
    if not unfinished.is_symlink():
        unfinished.unlink(missing_ok=True)
    return unfinished, os.open(unfinished, _FLAGS, mode)


def put_aside(path: Path, log: logging.Logger) -> None:
    """Keep a file that is not trusted, if it is there, beside its place: `<name>.rejected`."""
    try:
        with suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.rejected"))
    except OSError as error:
        log.warning("cannot keep it aside: %s", error.strerror)


class HeldFolder:
    """The folder that lay at a path when it was held; until then, whatever lies there.

    Somebody may move it and lay a link to another daemon's in its place. Files that are written by
    `at` then go into the one that was held, or fail if that was removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def hold(self, name: str, mine: os.stat_result) -> None:
        """Hold the folder at its path, in which a file of this name is known to be ours.

        Raises:
            DisaggError: Another file has that name there, so the folder is not the one meant.
            OSError: It cannot be opened. In both cases what was held still is.
        """
        descriptor = os.open(os.path.realpath(self._path), _FOLDER_FLAGS)
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
        """By which path a file in the folder is written, wherever the folder's own leads by now."""
        if self._descriptor < 0:
            return path
        self._renew()
        return Path(f"/proc/self/fd/{self._descriptor}/{path.name}")

    def _renew(self) -> None:
        """Hold the same folder as it is mounted now: read-only, perhaps."""
        try:
            fresh = os.open(os.path.realpath(self._path), _FOLDER_FLAGS)
        except OSError:
            return
        try:
            if os.path.samestat(os.fstat(fresh), os.fstat(self._descriptor)):
                os.dup2(fresh, self._descriptor, inheritable=False)
        finally:
            os.close(fresh)

    def close(self) -> None:
        """Hold nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
