"""A device's held time by engine and phase (accounting A3), as a whole and within intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.intervals import Intervals
from disagg_exporter.accounting.intervals.timeline import REASONS
from disagg_exporter.model import Reason, Use

_HELD_USES = (Use.PREFILL, Use.DECODE, Use.UNATTRIBUTED)


class Uses(NamedTuple):
    """Nanoseconds of some intervals: by engine and use, and by the reason why nobody held them."""

    held: dict[tuple[str, Use], list[float]]
    unheld: dict[Reason, list[float]]


def shared(slices: Intervals) -> dict[str, tuple[int, int, int]]:
    """Give each of k holders 1/k of every slice; (prefill, decode, dummy) ns of each engine.

    To the nanosecond: what k holders get of a slice, and the phases of each part, sum to it.
    """
    sums: dict[str, tuple[int, int, int]] = {}
    for engine, parts in zip(slices.engines, _parts(slices), strict=True):
        prefill_ns, decode_ns, dummy_ns = (int(part.sum()) for part in parts)
        before = sums.get(engine, (0, 0, 0))
        sums[engine] = before[0] + prefill_ns, before[1] + decode_ns, before[2] + dummy_ns
    return sums


def uses_within(slices: Intervals, starts_ns: Sequence[int], ends_ns: Sequence[int]) -> Uses:
    """Return what lies in each interval; what an interval has beyond the slices is not counted."""
    # Counted from the first slice on, so that a float tells them apart.
    edges = (slices.edges_ns - slices.edges_ns[0]).astype(np.float64)
    bounds = [np.asarray(side, np.int64) - slices.edges_ns[0] for side in (starts_ns, ends_ns)]

    def inside(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.concatenate(([0.0], np.cumsum(lengths)))
        first, last = (np.interp(side, edges, sums) for side in bounds)
        return np.asarray(np.maximum(last - first, 0.0), np.float64)

    held: dict[tuple[str, Use], list[float]] = {}
    each_ns = slices.lengths_ns / np.maximum(slices.held.sum(axis=0), 1)
    lanes = zip(slices.engines, slices.held, slices.prefill_share, slices.dummy_share, strict=True)
    for engine, holds, prefill_share, dummy_share in lanes:
        own_ns = np.where(holds, each_ns, 0.0)
        dummy_ns = own_ns * dummy_share
        prefill_ns = (own_ns - dummy_ns) * prefill_share
        parts = prefill_ns, own_ns - dummy_ns - prefill_ns, dummy_ns
        for use, part_ns in zip(_HELD_USES, parts, strict=True):
            if part_ns.any():
                before = held.get((engine, use), np.zeros(len(bounds[0])))
                held[engine, use] = (before + inside(part_ns)).tolist()
    idle = np.unique(slices.reasons[~slices.busy])
    lengths_ns = slices.lengths_ns
    unheld = {
        REASONS[code]: inside(np.where(slices.reasons == code, lengths_ns, 0.0)).tolist()
        for code in idle
    }
    return Uses(held, unheld)


def _parts(slices: Intervals) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Yield each lane's prefill, decode and dummy nanoseconds, slice by slice."""
    lengths_ns, count = slices.lengths_ns, np.maximum(slices.held.sum(axis=0), 1)
    number = np.zeros_like(lengths_ns)
    lanes = zip(slices.held, slices.prefill_share, slices.dummy_share, strict=True)
    for held, prefill_share, dummy_share in lanes:
        upto_ns = lengths_ns * (number + 1) // count
        own_ns = np.where(held, upto_ns - lengths_ns * number // count, 0)
        dummy_ns = np.rint(own_ns * dummy_share).astype(np.int64)
        prefill_ns = np.rint((own_ns - dummy_ns) * prefill_share).astype(np.int64)
        yield prefill_ns, own_ns - dummy_ns - prefill_ns, dummy_ns
        number += held
