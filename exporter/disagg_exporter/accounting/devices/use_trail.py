"""What a device's time went to shortly before: its energy counter shows that late (A10)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from disagg_exporter.accounting.intervals.row_queue import Flags, Floats, Ints
from disagg_exporter.model import Cell

LONGEST_LAG_NS = 600_000_000


class UseTrail:
    """The uses of intervals that follow each other, as far back as a counter may lag."""

    def __init__(self) -> None:
        self._lengths_ns = np.zeros(0)
        self._shares: dict[Cell, Floats] = {}

    def follow(self, lengths_ns: Floats, shares: Mapping[Cell, Floats]) -> None:
        """Take the next intervals: their lengths, and how much of each every cell had."""
        before_ns = np.cumsum(self._lengths_ns[::-1])[::-1]
        kept = int((before_ns < LONGEST_LAG_NS).sum()) + 1
        old, new = min(kept, len(before_ns)), len(lengths_ns)
        first = len(before_ns) - old
        self._lengths_ns = np.append(self._lengths_ns[first:], lengths_ns)
        self._shares = {
            cell: np.append(
                self._shares[cell][first:] if cell in self._shares else np.zeros(old),
                shares.get(cell, np.zeros(new)),
            )
            for cell in {**self._shares, **shares}
        }
        self._shares = {cell: ns for cell, ns in self._shares.items() if (ns > 0).any()}

    def reaches(self, count: int, start_ns: int | Ints) -> Flags:
        """Say of the last `count` intervals whether it is known what was before, for so long."""
        starts = np.append(0.0, np.cumsum(self._lengths_ns))[-count - 1 : -1]
        known: Flags = starts >= start_ns
        return known

    def stretched(self, count: int, start_ns: int | Ints, end_ns: int | Ints) -> dict[Cell, Floats]:
        """Return the uses of the last `count` intervals, begun and ended so much earlier.

        Those that begin before all that is known are as they are. Columns of times give rows each.
        """
        edges = np.append(0.0, np.cumsum(self._lengths_ns))
        starts, ends, known = edges[-count - 1 : -1], edges[-count:], self.reaches(count, start_ns)
        moved: dict[Cell, Floats] = {}
        for cell, own in self._shares.items():
            so_far = np.append(0.0, np.cumsum(own))
            amounts = np.interp(ends - end_ns, edges, so_far)
            amounts -= np.interp(starts - start_ns, edges, so_far)
            moved[cell] = np.maximum(amounts, 0.0)
        # Beside a long hole, rounding may leave nothing of a short interval.
        known = known & (sum(moved.values(), np.zeros(count)) > 0)
        return {
            cell: np.where(known, amounts, self._shares[cell][-count:])
            for cell, amounts in moved.items()
        }
