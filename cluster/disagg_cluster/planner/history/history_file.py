"""What is wrong with a file of past load, told all at once."""

from __future__ import annotations

from pathlib import Path

from disagg_exporter.errors import DisaggError

_MOST_TOLD = 10
_MOST_SECONDS = 32_503_680_000.0
"""The year 3000 as a Unix time: nobody has recorded beyond it, but in a smaller unit."""


class HistoryFileError(DisaggError):
    """A file that cannot be read as a load; the text names file and lines."""

    exit_code = 2


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> HistoryFileError:
    """Return why a file is not read at all, in the words that node files are told with."""
    why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
    return HistoryFileError(f"{path}: cannot be read: {why}")


def check_times(first_seconds: float, last_seconds: float, name: str, way_out: str) -> None:
    """Refuse times that are no times of a record; they may be Unix times, or begin at 0.

    Raises:
        HistoryFileError: They are not; the text ends with the way out.
    """
    if first_seconds >= -_MOST_SECONDS and last_seconds <= _MOST_SECONDS:
        return
    span = f"from {first_seconds:.6g} to {last_seconds:.6g} s"
    raise HistoryFileError(f"{name}: times {span} are a thousand years away; {way_out}")


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
