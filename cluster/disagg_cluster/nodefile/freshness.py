"""Whether a node file has changed since it was read, by inode, modification time and size."""

from __future__ import annotations

from pathlib import Path

_LOOK = "`disagg-node reload --dry-run` shows what is otherwise"

FileStamp = tuple[int, int, int]
"""A file's inode number, modification time (ns) and size when it was checked."""


def stamp_of(file: Path) -> FileStamp | None:
    """Return the stamp of a file; None if it is missing or cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class NodeFileFreshness:
    """Compares the node file with the version that was read last.

    Args:
        file: Its path; None for a daemon without one.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._accepted = None if file is None else stamp_of(file)
        self._wrong: tuple[FileStamp | None, int] = None, 0

    def accept(self, stamp: FileStamp | None) -> None:
        """Record that what was read at this stamp is in use, or waits for the next daemon."""
        self._accepted = stamp

    def refuse(self, stamp: FileStamp | None, problems: int) -> None:
        """Record that what was read at this stamp has problems."""
        self._wrong = stamp, problems

    def text(self) -> str:
        """Return what to report of the file; empty while it is unchanged."""
        if self._file is None:
            return ""
        now = stamp_of(self._file)
        if now is None:
            return f"{self._file} cannot be read: what was read of it holds, until a restart"
        if now == self._accepted:
            return ""
        stamp, problems = self._wrong
        if now == stamp:
            many = "a problem" if problems == 1 else f"{problems} problems"
            return f"{self._file} has {many}, so what was read before holds; {_LOOK}"
        return f"{self._file} was written since it was taken in; {_LOOK}"
