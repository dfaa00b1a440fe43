"""Entries that have their places, turned into frozen time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.intervals.phase import Overflow, WorkShares
from disagg_exporter.accounting.intervals.timeline import PIECE, WORK, Pieces
from disagg_exporter.accounting.timelines.entry import NO_GAP, Marks, Spans
from disagg_exporter.accounting.timelines.streams import RecordStream, steps_told
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.inside_engine.disagg_steps import wire


def divide(spans: Spans, count: int, streams: Sequence[RecordStream], split: StepSplit) -> None:
    """Say which phases the first entries' time was for: once each, in the order of records."""
    marks = spans.marks[:count]
    single = steps_told(spans, count, streams) == 1
    # Nothing is known across a gap, so those between two are divided together.
    gaps = np.flatnonzero(marks["lost"])
    for first, last in zip([0, *gaps + 1], [*gaps, count], strict=True):
        if first:
            split.skip()
        new = first + np.flatnonzero(marks["undivided"][first:last])
        if not len(new):
            continue
        kinds, rows = marks["kind"][new], spans.rows[new[0] : new[-1] + 1]
        if len(rows) > len(new):  # one among them was begun before
            rows = spans.rows[new]
        shares = split.settle(rows, kinds, spans.lengths_ns[new], single[new])
        mixed = kinds == wire.MIXED
        marks["prefill_share"][new[mixed]] = shares[mixed]
    marks["undivided"] = False


def laid_out(
    marks: Marks,
    starts_ns: NDArray[np.int64],
    ends_ns: NDArray[np.int64],
    within_ns: tuple[int, int],
    gaps: NDArray[np.int64],
) -> Pieces:
    """Return the pieces of a stretch of time that entries lie in.

    Args:
        marks: The entries.
        starts_ns: Where they begin.
        ends_ns: Where they end.
        within_ns: The stretch: from the end of the last one frozen to the new mark.
        gaps: Why the engine rests before the first, and after each, as codes.
    """
    # Entry k has the piece 2 k + 1; before each, and after the last, there is a gap.
    pieces = np.zeros(2 * len(marks) + 1, PIECE)
    pieces["start_ns"][1::2], pieces["end_ns"][1::2] = starts_ns, ends_ns
    pieces["start_ns"][0], pieces["start_ns"][2::2] = within_ns[0], ends_ns
    pieces["end_ns"][:-1:2], pieces["end_ns"][-1] = starts_ns, within_ns[1]
    pieces["prefill_share"][1::2] = marks["prefill_share"]
    pieces["dummy_share"][1::2] = marks["dummy_share"]
    pieces["reason"][1::2] = WORK
    pieces["reason"][0::2] = gaps
    return pieces


def gaps_after(marks: Marks, gap: int) -> NDArray[np.int64]:
    """Return why the engine rests before the first entry, and after each, as codes."""
    telling = np.where(marks["gap"] == NO_GAP, -1, np.arange(len(marks)))
    latest = np.maximum.accumulate(np.concatenate(([-1], telling)))
    told = np.concatenate(([gap], marks["gap"]))
    gaps: NDArray[np.int64] = told[latest + 1]
    return gaps


def owed(marks: Marks, overflows_ns: Sequence[int]) -> list[Overflow]:
    """Return the step time of entries that found no room."""
    return [
        Overflow(WorkShares(float(mark["prefill_share"]), float(mark["dummy_share"])), overflow_ns)
        for mark, overflow_ns in zip(marks, overflows_ns, strict=True)
        if overflow_ns
    ]
