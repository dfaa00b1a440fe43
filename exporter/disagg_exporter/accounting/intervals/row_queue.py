"""Array types, and a queue of structured rows in contiguous memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_LEAST_ROWS, _MOST_IDLE_ROWS = 256, 4096


class RowQueue:
    """A structured array that grows at its end and shrinks at its beginning without copying.

    Rows are copied as bytes, because numpy would copy them field by field.
    """

    __slots__ = ("_bytes", "_first", "_last", "_memory", "_row")

    def __init__(self, row: np.dtype[Any]) -> None:
        self._row = row
        self._bytes = np.dtype((np.void, row.itemsize))
        self._memory: NDArray[np.void] = np.empty(_LEAST_ROWS, self._bytes)
        self._first = self._last = 0

    def __len__(self) -> int:
        return self._last - self._first

    @property
    def rows(self) -> NDArray[np.void]:
        """All rows, readable and writable; valid until rows are added."""
        return self._memory[self._first : self._last].view(self._row)

    def add(self, rows: NDArray[np.void]) -> None:
        """Add contiguous rows at the end."""
        if self._last + len(rows) > len(self._memory):
            self._make_room(len(rows))
        self._memory[self._last : self._last + len(rows)] = rows.view(self._bytes)
        self._last += len(rows)

    def drop(self, count: int) -> None:
        """Drop rows at the beginning."""
        self._first += count
        # Otherwise the memory of one burst would be kept for as long as the engine is idle.
        if not len(self) and len(self._memory) > _MOST_IDLE_ROWS:
            self._memory = np.empty(_LEAST_ROWS, self._bytes)
            self._first = self._last = 0

    def replace(self, rows: NDArray[np.void]) -> None:
        """Replace all rows."""
        rows = rows.copy()
        self._first = self._last = 0
        self.add(rows)

    def _make_room(self, count: int) -> None:
        """Move the rows to the beginning, in new memory if this one is too small or too large."""
        kept, needed = self._memory[self._first : self._last], len(self) + count
        wanted = max(needed + needed // 2, _LEAST_ROWS)
        if not 5 * needed <= 4 * len(self._memory) <= 16 * wanted:
            self._memory = np.empty(wanted, self._bytes)
            self._memory[: len(kept)] = kept
        else:
            self._memory[: len(kept)] = kept.copy()
        self._first, self._last = 0, len(kept)
