"""Places steps in time (accounting A2) and lays them out as final pieces.

An engine timestamps a step when it *reports* it, and reports burst and stall. Certain are only the
order, the length of each step and that none ends after its report. So spans are packed: in
order, without overlap, each as late as possible but ending no later than its limit. A span may be
moved earlier to make room down to the floor, below which time is already committed; what does not
fit is the span's overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from disagg_exporter.accounting.intervals.row_queue import Ints
from disagg_exporter.accounting.intervals.timeline import PIECE, WORK, Overflow, Pieces, WorkShares
from disagg_exporter.accounting.timelines.records import NO_GAP, Marks, Spans
from disagg_exporter.accounting.timelines.streams import RecordStream, steps_since
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.steps.rows import ends_known


class Placed(NamedTuple):
    """The places of spans, and how much of each found no room."""

    start_ns: Ints
    end_ns: Ints
    overflow_ns: Ints


def pack(limits_ns: ArrayLike, lengths_ns: ArrayLike, floor_ns: int) -> Placed:
    """Place spans of the given lengths, each ending by its limit, none below the floor.

    The spans are in order. Placed length plus overflow is always the span's length.

    A span ends by its own limit, and by each later span's limit less the lengths from after it up
    to that span. With running sums: by the least (limit − sum) from it on, plus its own sum.
    """
    limits, desired = np.asarray(limits_ns, np.int64), np.asarray(lengths_ns, np.int64)
    # Limited to the room there is: the sum of what hostile engines claim may exceed 63 bits.
    lengths = np.minimum(desired, np.maximum(limits - floor_ns, 0))
    sums = np.cumsum(lengths)
    ends = np.minimum.accumulate((limits - sums)[::-1])[::-1] + sums
    starts = np.maximum(ends - lengths, floor_ns)
    ends = np.maximum(ends, floor_ns)
    return Placed(starts, ends, desired - (ends - starts))


def divide(
    spans: Spans,
    count: int,
    streams: Sequence[RecordStream],
    split: StepSplit,
    *,
    held_totals: bool,
) -> None:
    """Divide the first entries' time between the phases, once each, in the order of records.

    `held_totals`: lengths are the growth of totals of held time, so that of some steps they are not
    what the step really took; from those no costs are learned.
    """
    marks = spans.marks[:count]
    teaches = steps_since(spans, count, streams) == 1
    if held_totals:
        teaches &= ends_known(spans.rows[:count], marks["kind"])
    # Nothing is learned across a gap, so the entries between two gaps are divided together.
    gaps = np.flatnonzero(marks["lost"])
    for first, last in zip([0, *gaps + 1], [*gaps, count], strict=True):
        if first:
            split.skip()
        new = first + np.flatnonzero(marks["undivided"][first:last])
        if not len(new):
            continue
        kinds, rows = marks["kind"][new], spans.rows[new[0] : new[-1] + 1]
        if len(rows) > len(new):  # some were divided before
            rows = spans.rows[new]
        shares = split.divide(rows, kinds, spans.lengths_ns[new], teaches[new])
        mixed = kinds == wire.MIXED
        marks["prefill_share"][new[mixed]] = shares[mixed]
    marks["undivided"] = False


def laid_out(
    marks: Marks, starts_ns: Ints, ends_ns: Ints, within_ns: tuple[int, int], gaps: Ints
) -> Pieces:
    """Return the pieces of a period of time that contains entries.

    Args:
        marks: The entries.
        starts_ns: Where they begin.
        ends_ns: Where they end.
        within_ns: The period, from the old mark to the new one.
        gaps: Codes of why the engine is idle before the first, and after each.
    """
    # Entry k is piece 2 k + 1; before each, and after the last, there is a gap.
    pieces = np.zeros(2 * len(marks) + 1, PIECE)
    pieces["start_ns"][1::2], pieces["end_ns"][1::2] = starts_ns, ends_ns
    pieces["start_ns"][0], pieces["start_ns"][2::2] = within_ns[0], ends_ns
    pieces["end_ns"][:-1:2], pieces["end_ns"][-1] = starts_ns, within_ns[1]
    pieces["prefill_share"][1::2] = marks["prefill_share"]
    pieces["dummy_share"][1::2] = marks["dummy_share"]
    pieces["reason"][1::2], pieces["reason"][0::2] = WORK, gaps
    return pieces


def gaps_after(marks: Marks, gap: int) -> Ints:
    """Return codes of why the engine is idle before the first entry, and after each."""
    known = np.where(marks["gap"] == NO_GAP, -1, np.arange(len(marks)))
    latest = np.maximum.accumulate(np.concatenate(([-1], known)))
    gaps: Ints = np.concatenate(([gap], marks["gap"]))[latest + 1]
    return gaps


def begin(spans: Spans, place: int, placed: Placed, target_ns: int) -> None:
    """Keep the part of an entry's span beyond the target, and its overflow, for later."""
    left_ns = placed.end_ns[place] - target_ns + placed.overflow_ns[place]
    spans.rows["elapsed_ns"][place] = left_ns
    if not spans.marks["begun"][place]:
        spans.marks["began_ns"][place] = placed.start_ns[place]
    spans.marks["begun"][place] = True


def overflows(marks: Marks, placed: Placed) -> list[Overflow]:
    """Return the step time that found no room of the first entries, those in `marks`."""
    places = np.flatnonzero(placed.overflow_ns[: len(marks)]).tolist()
    if not places:
        return []  # the usual case
    starts_ns = np.where(marks["begun"], marks["began_ns"], placed.start_ns[: len(marks)])
    return [
        Overflow(
            WorkShares(float(marks["prefill_share"][place]), float(marks["dummy_share"][place])),
            int(placed.overflow_ns[place]),
            int(starts_ns[place]),
        )
        for place in places
    ]
