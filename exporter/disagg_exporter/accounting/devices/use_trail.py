"""The uses of a device's time between two energy readings, and shortly before them (A10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from disagg_exporter.accounting.intervals.intervals import Intervals
from disagg_exporter.accounting.intervals.row_queue import Flags, Floats, Ints
from disagg_exporter.accounting.intervals.timeline import REASONS
from disagg_exporter.model import Cell, Reason, Use

_HELD_USES = (Use.PREFILL, Use.DECODE, Use.UNATTRIBUTED)

LONGEST_LAG_NS = 600_000_000


class Uses(NamedTuple):
    """Nanoseconds in some periods: by engine and use, or by the reason for no holder."""

    held: dict[tuple[str, Use], Floats]
    unheld: dict[Reason, Floats]


def uses_within(intervals: Intervals, starts_ns: Sequence[int], ends_ns: Sequence[int]) -> Uses:
    """Return the uses within each given period, as far as the intervals cover it."""
    # Relative to the first interval, so that floats are exact enough.
    edges = (intervals.edges_ns - intervals.edges_ns[0]).astype(np.float64)
    bounds = [np.asarray(side, np.int64) - intervals.edges_ns[0] for side in (starts_ns, ends_ns)]

    def inside(lengths: Floats) -> Floats:
        sums = np.concatenate(([0.0], np.cumsum(lengths)))
        first, last = (np.interp(side, edges, sums) for side in bounds)
        return np.asarray(np.maximum(last - first, 0.0), np.float64)

    held: dict[tuple[str, Use], Floats] = {}
    each_ns = intervals.lengths_ns / np.maximum(intervals.held.sum(axis=0), 1)
    for number, engine in enumerate(intervals.engines):
        own_ns = np.where(intervals.held[number], each_ns, 0.0)
        dummy_ns = own_ns * intervals.dummy_share[number]
        prefill_ns = (own_ns - dummy_ns) * intervals.prefill_share[number]
        parts = prefill_ns, own_ns - dummy_ns - prefill_ns, dummy_ns
        for use, part_ns in zip(_HELD_USES, parts, strict=True):
            if part_ns.any():
                held[engine, use] = held.get((engine, use), 0.0) + inside(part_ns)
    unheld = {
        REASONS[code]: inside(np.where(intervals.reasons == code, intervals.lengths_ns, 0.0))
        for code in np.unique(intervals.reasons[~intervals.busy])
    }
    return Uses(held, unheld)


class UseTrail:
    """The uses of consecutive intervals, as far back as an energy counter may lag."""

    def __init__(self) -> None:
        self._lengths_ns = np.zeros(0)
        self._shares: dict[Cell, Floats] = {}

    def follow(self, lengths_ns: Floats, shares: Mapping[Cell, Floats]) -> None:
        """Append intervals: their lengths, and the time of each cell in them."""
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
        """Return for the last `count` intervals whether the `start_ns` before each is known."""
        starts = np.append(0.0, np.cumsum(self._lengths_ns))[-count - 1 : -1]
        known: Flags = starts >= start_ns
        return known

    def stretched(self, count: int, start_ns: int | Ints, end_ns: int | Ints) -> dict[Cell, Floats]:
        """Return the uses of the last `count` intervals with their edges moved back by these times.

        An interval moved beyond what is known stays in place. A column of times gives a row each.
        """
        edges = np.append(0.0, np.cumsum(self._lengths_ns))
        starts, ends, known = edges[-count - 1 : -1], edges[-count:], self.reaches(count, start_ns)
        moved: dict[Cell, Floats] = {}
        for cell, own in self._shares.items():
            so_far = np.append(0.0, np.cumsum(own))
            amounts = np.interp(ends - end_ns, edges, so_far)
            amounts -= np.interp(starts - start_ns, edges, so_far)
            moved[cell] = np.maximum(amounts, 0.0)
        # Next to a long gap, rounding may leave nothing of a short interval.
        known = known & (sum(moved.values(), np.zeros(count)) > 0)
        return {
            cell: np.where(known, amounts, self._shares[cell][-count:])
            for cell, amounts in moved.items()
        }
