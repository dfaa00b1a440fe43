"""The last steps of an engine as they arrived: what the fast gauges look back on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from disagg_exporter.accounting.entry import Recent
from disagg_exporter.accounting.rules import SECOND_NS

# How far the gauges may look back, unless steps are longer than half of it.
_HORIZON_NS = 2 * SECOND_NS


class Recents:
    """Steps within the gauges' horizon; `longest_ns` is the longest of them."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._kept: deque[Recent] = deque()
        # Those that no later one is as long as, longest first: the longest of what is kept is
        # then at hand after each one forgotten.
        self._peaks: deque[Recent] = deque()

    def add(self, recent: Recent) -> None:
        """Take the newest step and forget what the gauges can no longer reach."""
        kept, peaks = self._kept, self._peaks
        kept.append(recent)
        while peaks and peaks[-1].length_ns <= recent.length_ns:
            peaks.pop()
        peaks.append(recent)
        reach_ns = recent.t_ns - max(_HORIZON_NS, 2 * peaks[0].length_ns)
        while kept[0].t_ns < reach_ns:
            if kept.popleft() is peaks[0]:
                peaks.popleft()
        self.longest_ns = peaks[0].length_ns

    def newest_first(self) -> Iterator[Recent]:
        """Go through the steps, the last to arrive first."""
        return reversed(self._kept)
