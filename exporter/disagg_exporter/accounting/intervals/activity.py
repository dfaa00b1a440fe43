"""The activity of devices: samples of the driver's busy ratio."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from disagg_exporter.model import SECOND_NS

# A driver's utilisation is a mean over up to this long before the sample (nvidia-smi's manual
# says between 1/6 s and 1 s), so a sample this close after a span may still average over the span.
TRAIL_NS = SECOND_NS

# Below this a device counts as idle: a display or a health check may cause it.
_ACTIVE_RATIO = 0.05


class ActivitySample(NamedTuple):
    """A driver's busy ratio of a device in [start, end): 0 to 1."""

    start_ns: int
    end_ns: int
    busy_ratio: float


def mean_activity(devices: Sequence[Sequence[ActivitySample]]) -> tuple[ActivitySample, ...]:
    """Return the mean activity of an engine's devices, as samples of one device.

    The devices are read in the same round, so the busiest one's sample times are used for all.
    Devices without samples are left out.
    """
    known = [samples for samples in devices if samples]
    if len(known) <= 1:
        return tuple(known[0]) if known else ()
    busy_ns = [sum((s.end_ns - s.start_ns) * s.busy_ratio for s in of) for of in known]
    busiest = max(range(len(known)), key=busy_ns.__getitem__)
    # At most 1, except for rounding.
    factor = min(sum(busy_ns) / len(known) / (busy_ns[busiest] or 1.0), 1.0)
    return tuple(
        ActivitySample(s.start_ns, s.end_ns, s.busy_ratio * factor) for s in known[busiest]
    )


class ActivitySamples:
    """The samples of one device that end above its watermark.

    Args:
        fresh_ns: How old the last sample may be for the device to count as watched.
        sampled_before_ns: When the previous daemon took its last sample. The device counts as
            watched then, although that daemon's samples are lost.
    """

    def __init__(self, fresh_ns: int, sampled_before_ns: int | None = None) -> None:
        self.kept: deque[ActivitySample] = deque()
        self._fresh_ns = fresh_ns
        self._sampled_before_ns = sampled_before_ns
        self._added_ns: int | None = None
        # Start and end of each gap between two samples above the watermark, in order.
        self._gaps: deque[tuple[int, int]] = deque()

    def add(self, before_ns: int, t_ns: int, busy_ratio: float) -> None:
        """Add the busy ratio of a reading at `t_ns`; the one before it was at `before_ns`."""
        # After a gap in the readings the ratio says nothing about the gap.
        sample = ActivitySample(max(before_ns, t_ns - SECOND_NS), t_ns, busy_ratio)
        if self._added_ns is not None and sample.start_ns - self._added_ns > self._fresh_ns:
            self._gaps.append((self._added_ns, sample.start_ns))
        self._added_ns = t_ns
        self.kept.append(sample)

    @property
    def last_ns(self) -> int | None:
        """When the last sample was taken, by this daemon or the previous one."""
        return self.kept[-1].end_ns if self.kept else self._sampled_before_ns

    def is_watched(self, at_ns: int) -> bool:
        """Return whether the activity at an instant is known."""
        return self.last_ns is not None and self.last_ns >= at_ns - self._fresh_ns

    def watched(self, at_ns: int, end_ns: int) -> tuple[bool, int]:
        """Return whether the activity at an instant is known, and until when that holds at most.

        Later readings say nothing about a gap before them: the driver hung, or the daemon did.
        """
        if not self.is_watched(end_ns):
            return False, end_ns
        for from_ns, until_ns in self._gaps:
            if until_ns > at_ns:
                in_gap = from_ns <= at_ns
                return not in_gap, min(end_ns, until_ns if in_gap else from_ns)
        return True, end_ns

    def between(self, after_ns: int, until_ns: int) -> tuple[ActivitySample, ...]:
        """Return the samples that end in (after_ns, until_ns], in order."""
        return tuple(s for s in self.kept if after_ns < s.end_ns <= until_ns)

    def active_since(self, after_ns: int) -> bool | None:
        """Return whether a sample that ends later shows activity; None without such samples."""
        if not self.kept or self.kept[-1].end_ns <= after_ns:
            return None
        later = takewhile(lambda sample: sample.end_ns > after_ns, reversed(self.kept))
        return any(sample.busy_ratio >= _ACTIVE_RATIO for sample in later)

    def drop_until(self, watermark_ns: int) -> None:
        """Drop the samples that end at or below the watermark."""
        while self.kept and self.kept[0].end_ns <= watermark_ns:
            self.kept.popleft()
        while self._gaps and self._gaps[0][1] <= watermark_ns:
            self._gaps.popleft()
