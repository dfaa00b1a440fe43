"""Committed seconds of devices over time: the last minute, and a history in equal slots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from disagg_cluster.top.readings.values import GpuReading
from disagg_cluster.top.view.values import BUSY, GpuTime, History, HistorySlot
from disagg_exporter.model import Use

WINDOW_SECONDS = 60.0
"""The same window as on the daemon's HTML page."""
SLOT_SECONDS = 5.0
SLOTS = 120
_KEPT_SECONDS = (SLOTS + 1) * SLOT_SECONDS

Seconds = Mapping[str, float]
SlotSeconds = tuple[float, float, float]
"""Seconds of a slot in prefill, in decode, and observed."""


class GpuTimeline:
    """A device's committed seconds by use at several watermarks.

    Interpolated linearly between watermarks. A counter that has decreased comes from a restarted
    daemon; earlier values are then dropped.
    """

    def __init__(self) -> None:
        self._marks: list[float] = []
        self._seconds: list[Seconds] = []
        # A slot that is completely known does not change any more.
        self._slots: dict[int, SlotSeconds] = {}

    def add(self, reading: GpuReading) -> None:
        """Add a device's committed seconds, if they are new."""
        if reading.watermark is None or not reading.seconds:
            return
        if not self._marks and reading.start is not None and reading.start < reading.watermark:
            # At its start nothing was committed; until more is known, this gives the time since
            # then.
            self._marks.append(reading.start)
            self._seconds.append({})
        if self._marks and self._decreased(reading.seconds):
            self._marks.clear()
            self._seconds.clear()
            self._slots.clear()
        elif self._marks and reading.watermark <= self._marks[-1]:
            return
        if len(self._marks) == 2 and not self._seconds[0] and self._is_far():
            # With newer readings, the time since the start no longer describes recent use.
            del self._marks[0], self._seconds[0]
        self._marks.append(reading.watermark)
        self._seconds.append(reading.seconds)
        while len(self._marks) > 2 and self._marks[-1] - self._marks[1] > _KEPT_SECONDS:
            del self._marks[0], self._seconds[0]

    @property
    def watermark(self) -> float | None:
        """The time up to which it is known."""
        return self._marks[-1] if self._marks else None

    def last(self, seconds: float) -> GpuTime | None:
        """Use of the device in its last `seconds`, or in as many as are known."""
        if len(self._marks) < 2:
            return None
        end = self._marks[-1]
        begin = max(end - seconds, self._marks[0])
        if self._is_since_start():
            begin = self._marks[0]
        spent = _less(self._at(end), self._at(begin))
        return GpuTime(spent, end - begin)

    def slot(self, number: int) -> SlotSeconds | None:
        """Use in a slot, numbered from the epoch; None if it is not completely known."""
        if (kept := self._slots.get(number)) is not None:
            return kept
        begin, end = number * SLOT_SECONDS, (number + 1) * SLOT_SECONDS
        if not self.has_recent_use or begin < self._marks[0] or end > self._marks[-1]:
            return None
        spent = _less(self._at(end), self._at(begin))
        prefill, decode = (spent.get(use, 0.0) for use in BUSY)
        observed = sum(spent.values()) - spent.get(Use.UNOBSERVED.value, 0.0)
        self._slots[number] = prefill, decode, observed
        if len(self._slots) > 3 * SLOTS:
            for old in [each for each in self._slots if each < number - SLOTS]:
                del self._slots[old]
        return self._slots[number]

    @property
    def has_recent_use(self) -> bool:
        """Whether recent use is known, not only the total since its start."""
        return len(self._marks) >= 2 and not self._is_since_start()

    def _is_since_start(self) -> bool:
        """Whether all that is known is a long span from the start to the first reading."""
        return len(self._marks) == 2 and not self._seconds[0] and self._is_far()

    def _is_far(self) -> bool:
        return self._marks[1] - self._marks[0] > WINDOW_SECONDS

    def _decreased(self, seconds: Seconds) -> bool:
        return any(seconds.get(use, 0.0) < value for use, value in self._seconds[-1].items())

    def _at(self, time: float) -> Seconds:
        after = min(max(bisect_right(self._marks, time), 1), len(self._marks) - 1)
        begin, end = self._marks[after - 1], self._marks[after]
        before, later = self._seconds[after - 1], self._seconds[after]
        part = (time - begin) / (end - begin)
        return {
            use: before.get(use, 0.0) + part * (value - before.get(use, 0.0))
            for use, value in later.items()
        }


def _less(later: Seconds, earlier: Seconds) -> Seconds:
    return {use: max(value - earlier.get(use, 0.0), 0.0) for use, value in later.items()}


def total(times: Sequence[GpuTime]) -> GpuTime | None:
    """The total of several devices, over the longest of their windows; None without any."""
    if not times:
        return None
    seconds = {use.value: sum(time.seconds.get(use.value, 0.0) for time in times) for use in Use}
    return GpuTime(seconds, max(time.window_seconds for time in times))


def history(timelines: Sequence[GpuTimeline], until: float | None = None) -> History:
    """Use of devices together in equal slots up to a time, or up to the latest watermark.

    A slot without known or observed time is None.
    """
    marks = [line.watermark for line in timelines if line.watermark is not None]
    if not marks:
        return ()
    # Slots are aligned to the epoch, so that they do not shift over time.
    end = int((max(marks) if until is None else until) // SLOT_SECONDS)
    return tuple(_slot(timelines, number) for number in range(end - SLOTS, end))


def _slot(timelines: Sequence[GpuTimeline], number: int) -> HistorySlot | None:
    prefill = decode = observed = 0.0
    for line in timelines:
        if (spent := line.slot(number)) is not None:
            prefill, decode = prefill + spent[0], decode + spent[1]
            observed += spent[2]
    return HistorySlot(prefill / observed, decode / observed) if observed > 0 else None
