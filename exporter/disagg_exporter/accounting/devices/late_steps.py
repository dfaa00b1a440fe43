"""Steps reported too late to be placed where they ran, and their activity there.

Their time is settled in later idle time (accounting A2). Where their place is already committed,
activity there was counted as unattributed; it stays so, and the steps are not credited with it
again. Elsewhere the activity is theirs. So no second is counted twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from disagg_exporter.accounting.intervals.activity import ActivitySample
from disagg_exporter.accounting.intervals.row_queue import Ints

# Saved each second. Beyond this number the earliest are joined: few steps reach back so far.
_MOST_STRETCHES = 32


class LateSteps:
    """Places of a device's late steps, and its unattributed activity within their reach."""

    def __init__(self, reach_ns: int, unclaimed: Iterable[tuple[int, int, int]] = ()) -> None:
        self._reach_ns = reach_ns
        # Start, end, and the unattributed activity in between that no late step has claimed.
        self._unclaimed = deque(unclaimed)
        # Places above the watermark, ascending and disjoint: an engine that claims more time than
        # has passed only extends one of them, so a lookup costs the same.
        self._starts_ns: list[int] = []
        self._ends_ns: list[int] = []

    @property
    def places(self) -> int:
        """The number of places above the watermark that each sample is checked against."""
        return len(self._starts_ns)

    def checkpoint(self) -> tuple[tuple[int, int, int], ...]:
        """Return the activity that is not claimed yet."""
        return tuple(stretch for stretch in self._unclaimed if stretch[2])

    def add(self, start_ns: int, end_ns: int, watermark_ns: int) -> int:
        """Add a late step's place; return its time already committed as unattributed activity."""
        if end_ns > max(start_ns, watermark_ns):
            self._open(max(start_ns, watermark_ns), end_ns)
        claimed_ns = 0
        for place, (start, end, active_ns) in enumerate(self._unclaimed):
            part_ns = min(active_ns, max(min(end, end_ns) - max(start, start_ns), 0))
            self._unclaimed[place] = start, end, active_ns - part_ns
            claimed_ns += part_ns
        return claimed_ns

    def _open(self, start_ns: int, end_ns: int) -> None:
        first = bisect_left(self._ends_ns, start_ns)
        last = bisect_right(self._starts_ns, end_ns)
        if first < last:
            start_ns = min(start_ns, self._starts_ns[first])
            end_ns = max(end_ns, self._ends_ns[last - 1])
        self._starts_ns[first:last] = [start_ns]
        self._ends_ns[first:last] = [end_ns]

    def others(self, samples: Sequence[ActivitySample]) -> Sequence[ActivitySample]:
        """Return the samples that overlap no late step's place."""
        if not self._starts_ns:
            return samples
        return [sample for sample in samples if not self._touches(sample)]

    def _touches(self, sample: ActivitySample) -> bool:
        place = bisect_right(self._ends_ns, sample.start_ns)
        return place < len(self._starts_ns) and self._starts_ns[place] < sample.end_ns

    def commit(self, edges_ns: Sequence[int] | Ints, active_ns: int) -> None:
        """Record the unattributed activity committed between two edges, in order of time."""
        start_ns, end_ns = int(edges_ns[0]), int(edges_ns[-1])
        if active_ns > 0:
            self._unclaimed.append((start_ns, end_ns, active_ns))
        while self._unclaimed and self._unclaimed[0][1] <= end_ns - self._reach_ns:
            self._unclaimed.popleft()
        if len(self._unclaimed) > _MOST_STRETCHES:
            (first_ns, _, active_ns), (_, last_ns, more_ns) = (
                self._unclaimed.popleft() for _ in range(2)
            )
            self._unclaimed.appendleft((first_ns, last_ns, active_ns + more_ns))
        passed = bisect_right(self._ends_ns, end_ns)
        del self._starts_ns[:passed], self._ends_ns[:passed]
