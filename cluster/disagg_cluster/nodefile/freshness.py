"""Whether a node file is still what was taken in of it, by what its folder says of it."""

from __future__ import annotations

from pathlib import Path

_LOOK = "`disagg-node reload --dry-run` shows what is otherwise"

FileStamp = tuple[int, int, int]
"""Of a file when it was looked at: its number on the disk, when it was written (ns), its bytes."""


def stamp_of(file: Path) -> FileStamp | None:
    """The stamp of a file; None if it is not there or cannot be looked at."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class NodeFileFreshness:
    """Compares the node file with the one that was taken in last.

    Args:
        file: Where it is; None of a daemon without one.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._taken = None if file is None else stamp_of(file)
        self._wrong: tuple[FileStamp | None, int] = None, 0

    def take(self, stamp: FileStamp | None) -> None:
        """What was read at this stamp is what the daemon runs on, or waits for the next."""
        self._taken = stamp

    def refuse(self, stamp: FileStamp | None, problems: int) -> None:
        """What was read at this stamp has problems."""
        self._wrong = stamp, problems

    def text(self) -> str:
        """What is to be said of the file; empty while it is what was taken in."""
        if self._file is None:
            return ""
        now = stamp_of(self._file)
        if now is None:
            return f"{self._file} cannot be read: what was read of it holds, until a restart"
        if now == self._taken:
            return ""
        stamp, problems = self._wrong
        if now == stamp:
            many = "a problem" if problems == 1 else f"{problems} problems"
            return f"{self._file} has {many}, so what was read before holds; {_LOOK}"
        return f"{self._file} was written since it was taken in; {_LOOK}"
