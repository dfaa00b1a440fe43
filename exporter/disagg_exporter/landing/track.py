"""A few numbers over the last hour: recent ones every second, older ones every ten; bounded."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

FINE_SECONDS = 300.0
COARSE_STEP_SECONDS = 10.0
KEPT_SECONDS = 3600.0
# Excess rows allowed at the front before they are cut off: cutting moves all that is kept.
_SLACK_ROWS = 60


class Track:
    """Rows of numbers at ascending times; rows older than an hour are dropped.

    Args:
        width: Number of values in a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._fine, self._coarse = _Rows(width), _Rows(width)

    def add(self, seconds: float, row: Sequence[float]) -> None:
        """Add a row; one that is not later than the last is ignored."""
        fine, coarse = self._fine, self._coarse
        if fine.times and seconds <= fine.times[-1]:
            return
        fine.add(seconds, row)
        fine.forget(seconds - FINE_SECONDS)
        if not coarse.times or seconds - coarse.times[-1] >= COARSE_STEP_SECONDS:
            coarse.add(seconds, row)
            coarse.forget(seconds - KEPT_SECONDS)

    @property
    def begin_seconds(self) -> float | None:
        """Time of the first kept row; None before there is one."""
        return self._coarse.times[0] if self._coarse.times else None

    @property
    def end_seconds(self) -> float | None:
        """Time of the last row; None before there is one."""
        return self._fine.times[-1] if self._fine.times else None

    def at(self, seconds: float) -> tuple[float, ...] | None:
        """Return the row at a time, interpolated linearly; None outside of the kept range."""
        rows = self._fine if self._fine.holds(seconds) else self._coarse
        return rows.at(seconds) if rows.holds(seconds) else None


class _Rows:
    """Times and rows, in two arrays: a tuple of floats takes five times as much."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.times = array("d")
        self._values = array("d")

    def add(self, seconds: float, row: Sequence[float]) -> None:
        self.times.append(seconds)
        self._values.extend(row)

    def forget(self, before_seconds: float) -> None:
        # The last one before is kept, as the time between it and the next can still be read.
        gone = bisect_right(self.times, before_seconds) - 1
        if gone > _SLACK_ROWS:
            del self.times[:gone]
            del self._values[: gone * self._width]

    def holds(self, seconds: float) -> bool:
        return bool(self.times) and self.times[0] <= seconds <= self.times[-1]

    def at(self, seconds: float) -> tuple[float, ...]:
        after = bisect_right(self.times, seconds)
        low = self._row(after - 1)
        if after == len(self.times):
            return low
        begin, end = self.times[after - 1], self.times[after]
        part = (seconds - begin) / (end - begin)
        high = self._row(after)
        return tuple(a + part * (b - a) for a, b in zip(low, high, strict=True))

    def _row(self, place: int) -> tuple[float, ...]:
        return tuple(self._values[place * self._width : (place + 1) * self._width])
