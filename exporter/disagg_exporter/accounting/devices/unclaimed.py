"""Activity that was committed as nobody's, and where: a step that comes late may have been it.

What is committed cannot be taken back. So that no second is counted twice, such a step does not get
it again in a later rest (accounting A2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class UnclaimedActivity:
    """Unattributed activity of one device, as far back as a step may reach."""

    def __init__(self, reach_ns: int, stretches: Iterable[tuple[int, int, int]] = ()) -> None:
        self._reach_ns = reach_ns
        # Start, end, and how much of what was active in between no step has claimed since.
        self._stretches = deque(stretches)

    def checkpoint(self) -> tuple[tuple[int, int, int], ...]:
        """Return what is left to be claimed."""
        return tuple(stretch for stretch in self._stretches if stretch[2])

    def add(self, start_ns: int, end_ns: int, active_ns: int) -> None:
        """Note what was committed of a stretch; stretches come in the order of time."""
        if active_ns > 0:
            self._stretches.append((start_ns, end_ns, active_ns))
        while self._stretches and self._stretches[0][1] <= end_ns - self._reach_ns:
            self._stretches.popleft()

    def claim(self, start_ns: int, end_ns: int) -> int:
        """Return how many nanoseconds of a late span were committed as nobody's; each once."""
        claimed_ns = 0
        for place, (start, end, active_ns) in enumerate(self._stretches):
            part_ns = min(active_ns, max(min(end, end_ns) - max(start, start_ns), 0))
            self._stretches[place] = start, end, active_ns - part_ns
            claimed_ns += part_ns
        return claimed_ns
