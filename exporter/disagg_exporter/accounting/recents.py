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

    def add(self, recent: Recent) -> None:
        """Take the newest step and forget what the gauges can no longer reach."""
        self._kept.append(recent)
        self.longest_ns = max(self.longest_ns, recent.length_ns)
        forgotten_ns = 0
        while self._kept[0].t_ns < recent.t_ns - max(_HORIZON_NS, 2 * self.longest_ns):
            forgotten_ns = max(forgotten_ns, self._kept.popleft().length_ns)
        if forgotten_ns == self.longest_ns:
            self.longest_ns = max(kept.length_ns for kept in self._kept)

    def newest_first(self) -> Iterator[Recent]:
        """Go through the steps, the last to arrive first."""
        return reversed(self._kept)
