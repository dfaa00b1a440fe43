"""Reads lines of a log and its older parts from the end, in memory that no log can enlarge."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from pathlib import Path

from disagg_cluster.host.log_times import written_at

MOST_LINE_BYTES = 1 << 20
"""Only the beginning of a longer line is shown."""

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class LinePlace:
    """Where a line begins: the part, and the byte offset in it."""

    part: int
    at_bytes: int


FIRST = LinePlace(0, 0)
"""The beginning of the oldest part."""


class LogParts:
    """The parts of one log as they were at construction, the youngest last.

    A missing part has no lines; a part truncated since has the lines that are left.

    Args:
        paths: The files.
        until_bytes: Where reading of the youngest ends.
    """

    def __init__(self, paths: Sequence[Path], until_bytes: int) -> None:
        self._paths = paths
        self._until_bytes = until_bytes

    def last(
        self, count: int, wanted: Callable[[str], bool], begin: LinePlace = FIRST
    ) -> Iterator[str]:
        """Yield the last `count` wanted lines, the oldest first; none before `begin`.

        Raises:
            OSError: A part cannot be read.
        """
        lines = takewhile(lambda found: found[0] >= begin, self.backwards())
        found = islice((place for place, line in lines if wanted(line)), count)
        for first in deque(found, maxlen=1):
            yield from filter(wanted, self.forwards(first))

    def first_since(self, begin: datetime, now: datetime) -> LinePlace | None:
        """Return the first line that was written at `begin` or later; raises as `last`.

        That is the first line after all that were written before. A line without a time belongs to
        the one before it, like a traceback to its error. If no line has a time, there is none.

        Args:
            begin: The start time.
            now: As for `written_at`.
        """
        first = None
        for place, line in self.backwards():
            at = written_at(line, now)
            if at is not None and at < begin:
                break
            first = first if at is None else place
        return first

    def backwards(self) -> Iterator[tuple[LinePlace, str]]:
        """Yield every line with its place, the last first; raises as `last`."""
        for part in reversed(range(len(self._paths))):
            with suppress(FileNotFoundError), self._paths[part].open("rb", buffering=0) as log:
                size = log.seek(0, os.SEEK_END)
                end = min(size, self._until_bytes) if self._is_youngest(part) else size
                for at_bytes, line in _lines_before(log.fileno(), end):
                    yield LinePlace(part, at_bytes), _text(line)

    def forwards(self, begin: LinePlace) -> Iterator[str]:
        """Yield the lines from a place on; raises as `last`."""
        for part in range(begin.part, len(self._paths)):
            with suppress(FileNotFoundError), self._paths[part].open("rb") as log:
                log.seek(begin.at_bytes if part == begin.part else 0)
                left = self._until_bytes - log.tell() if self._is_youngest(part) else sys.maxsize
                while line := log.readline(min(left, MOST_LINE_BYTES)):
                    yield _text(line)
                    left -= len(line)
                    while line and left > 0 and not line.endswith(b"\n"):
                        line = log.readline(min(left, MOST_LINE_BYTES))
                        left -= len(line)

    def _is_youngest(self, part: int) -> bool:
        return part == len(self._paths) - 1


def _lines_before(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield where the lines before a place begin, with their beginnings, the last first."""
    # The last line may have no end yet.
    line_end, low = end, end
    while low > 0:
        low, high = max(0, low - _CHUNK_BYTES), low
        chunk = os.pread(descriptor, high - low, low)
        at = len(chunk)
        while (at := chunk.rfind(b"\n", 0, at)) >= 0:
            begin = low + at + 1
            if begin < line_end:
                inside = chunk[at + 1 : line_end - low] if line_end <= high else b""
                yield begin, inside or _piece(descriptor, begin, line_end)
            line_end = begin
    if line_end > 0:
        yield 0, _piece(descriptor, 0, line_end)


def _piece(descriptor: int, begin: int, end: int) -> bytes:
    return os.pread(descriptor, min(end - begin, MOST_LINE_BYTES), begin)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")
