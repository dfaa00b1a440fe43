"""What is wrong with a file of past load, told all at once."""

from __future__ import annotations

from pathlib import Path

from disagg_exporter.errors import DisaggError

_MOST_TOLD = 10


class HistoryFileError(DisaggError):
    """A file that cannot be read as a load; the text names file and lines."""

    exit_code = 2


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> HistoryFileError:
    """Return why a file is not read at all, in the words that node files are told with."""
    why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
    return HistoryFileError(f"{path}: cannot be read: {why}")


class Problems:
    """Collects what is wrong with the lines of a file.

    Args:
        name: What the file is called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: list[str] = []
        self._count = 0

    def add(self, line: int, what: str) -> None:
        """Keep one; many alike are counted, not kept."""
        self._count += 1
        if self._count <= _MOST_TOLD:
            self._told.append(f"{self._name}:{line}: {what}")

    def raise_any(self) -> None:
        """Raise `HistoryFileError` if there is one."""
        if not self._count:
            return
        more = self._count - len(self._told)
        raise HistoryFileError("\n".join([*self._told, *([f"and {more} more"] if more else [])]))
