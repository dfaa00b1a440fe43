"""Problems of a file of past load, reported all at once."""

from __future__ import annotations

from pathlib import Path

from disagg_exporter.errors import DisaggError

_MOST_LISTED = 10
_MOST_SECONDS = 32_503_680_000.0
"""The year 3000 as a Unix time: later times are in a smaller unit."""


class HistoryFileError(DisaggError):
    """A file cannot be read as a load; the text names file and lines."""

    exit_code = 2


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> HistoryFileError:
    """Return the error of an unreadable file, worded as for node files."""
    why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
    return HistoryFileError(f"{path}: cannot be read: {why}")


def check_times(first_seconds: float, last_seconds: float, name: str, way_out: str) -> None:
    """Reject implausible times; Unix times and times that begin at 0 are accepted.

    Raises:
        HistoryFileError: The times are implausible; the text ends with `way_out`.
    """
    if first_seconds >= -_MOST_SECONDS and last_seconds <= _MOST_SECONDS:
        return
    span = f"from {first_seconds:.6g} to {last_seconds:.6g} s"
    raise HistoryFileError(f"{name}: times {span} are a thousand years away; {way_out}")


class Problems:
    """Collects the problems of a file's lines.

    Args:
        name: Name of the file in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._listed: list[str] = []
        self._count = 0

    def add(self, line: int, what: str) -> None:
        """Record a problem; beyond the first few they are only counted."""
        self._count += 1
        if self._count <= _MOST_LISTED:
            self._listed.append(f"{self._name}:{line}: {what}")

    def raise_any(self) -> None:
        """Raise `HistoryFileError` if there is any problem."""
        if not self._count:
            return
        more = self._count - len(self._listed)
        raise HistoryFileError("\n".join([*self._listed, *([f"and {more} more"] if more else [])]))
