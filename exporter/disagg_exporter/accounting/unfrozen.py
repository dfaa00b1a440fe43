"""What an engine told and is not frozen yet: its records, and the spans of time they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.accounting.entry import Stream
from disagg_exporter.accounting.restore import restored
from disagg_exporter.accounting.rowqueue import RowQueue
from disagg_exporter.model import StepTotals
from disagg_exporter.steprows import ROW, STEPS_TOTALS, Rows, steps_of, totals_of

NO_GAP = -1
"""In `gap`: the entry says nothing of the time after it."""

MARK = np.dtype(
    [
        ("stream", np.int64),
        ("kind", np.int64),
        ("prefill_share", np.float64),
        ("dummy_share", np.float64),
        ("prefill_tokens", np.int64),
        ("decode_tokens", np.int64),
        ("gap", np.int64),
        ("pending", np.bool_),
        ("undivided", np.bool_),
        ("marker", np.bool_),
        ("begun", np.bool_),
        ("lost", np.int64),
    ]
)
"""What we make of a record, beside its row.

`pending`: work is left after it; `gap` is the code of the reason why its engine rests then.
`undivided`: its time is yet to be divided between the phases, its shares are provisional.
`marker`: no record, but a heartbeat that knows of a newer one than we do; it holds no time itself.
`lost`: how many missing records it stands for. Such an entry is made anew at each look, so that
the missing may still arrive, until it is `begun`: partly frozen, and what remains is its length.
"""

Marks = NDArray[np.void]
"""An array of `MARK`."""


class Spans(NamedTuple):
    """Entries in the order in which they were made, and how long a span each makes.

    `made_up`: some of them stand for lost records.
    """

    rows: Rows
    marks: Marks
    lengths_ns: NDArray[np.int64]
    made_up: bool = False


class Unfrozen:
    """The records of one lane.

    `begun_ns` is when the lane began: before its first record there was no work.
    """

    def __init__(self, begun_ns: int) -> None:
        self._rows = RowQueue(ROW)
        self._marks = RowQueue(MARK)
        self._markers = False
        # The last record that is frozen whole: when it was made, and whether it left work.
        self._settled = begun_ns, False

    def __bool__(self) -> bool:
        return len(self._rows) > 0

    def add(self, rows: Rows, marks: Marks) -> None:
        """Take records of one stream, or a heartbeat's marker."""
        known = len(self._rows)
        self._rows.add(rows)
        self._marks.add(marks)
        self._markers = self._markers or bool(marks["marker"].any())
        t_ns = self._rows.rows["t_ns"][max(known - 1, 0) :]
        # Nearly all come in order, which the times alone can tell.
        if (t_ns[1:] <= t_ns[:-1]).any():
            rows = self._rows.rows
            order = np.lexsort((rows["sequence"], rows["t_ns"]))
            self._rows.replace(rows[order])
            self._marks.replace(self._marks.rows[order])

    def sequences(self, stream: int) -> NDArray[np.int64]:
        """Return the numbers of a stream's records here."""
        marks = self._marks.rows
        ours = (marks["stream"] == stream) & ~marks["marker"] & (marks["lost"] == 0)
        numbers: NDArray[np.int64] = self._rows.rows["sequence"][ours]
        return numbers

    def spans(self, streams: Sequence[Stream], *, overlapped: bool) -> Spans:
        """Return the entries with their lengths, those that stand for lost records among them."""
        if self._markers:
            self._drop_overtaken(range(len(streams)))
        rows, marks = self._rows.rows, self._marks.rows
        lengths_ns = rows["elapsed_ns"]
        if overlapped:
            lengths_ns = self._reaching()
        missing = _missing(rows, marks, streams)
        if not missing:
            return Spans(rows, marks, lengths_ns)
        return _restored(Spans(rows, marks, lengths_ns), missing, overlapped=overlapped)

    def keep(self, spans: Spans, settled: int) -> None:
        """Forget the first spans, which are settled; the next may have been begun."""
        rows, marks = spans.rows, spans.marks
        telling = np.flatnonzero(marks["gap"][:settled] != NO_GAP)
        if len(telling):
            last = telling[-1]
            self._settled = int(rows["t_ns"][last]), bool(marks["pending"][last])
        if not spans.made_up:
            self._rows.drop(settled)
            self._marks.drop(settled)
            return
        rows, marks = rows[settled:], marks[settled:]
        told = (marks["lost"] == 0) | marks["begun"]
        self._rows.replace(rows[told])
        self._marks.replace(marks[told])

    def cut(self, t_ns: int) -> None:
        """Let no record be later than its engine's end."""
        rows = self._rows.rows
        rows["t_ns"] = np.minimum(rows["t_ns"], t_ns)

    def _drop_overtaken(self, streams: range) -> None:
        """Drop the markers whose record has come."""
        rows, marks = self._rows.rows, self._marks.rows
        known = np.zeros(len(rows), np.bool_)
        for stream in streams:
            ours = marks["marker"] & (marks["stream"] == stream)
            known |= ours & np.isin(rows["sequence"], self.sequences(stream))
        self._rows.replace(rows[~known])
        self._marks.replace(marks[~known])
        self._markers = bool(self._marks.rows["marker"].any())

    def _reaching(self) -> NDArray[np.int64]:
        """Return lengths where a span reaches from record to record while work is pending."""
        rows, marks = self._rows.rows, self._marks.rows
        t_ns = rows["t_ns"]
        records = np.where(marks["marker"], -1, np.arange(len(marks)))
        before = np.empty_like(records)
        before[:1] = -1
        before[1:] = np.maximum.accumulate(records)[:-1]
        first = before < 0
        before_ns = np.where(first, self._settled[0], t_ns[before])
        chained = np.where(first, self._settled[1], marks["pending"][before])
        chained &= ~marks["begun"] & ~marks["marker"]
        # A record that comes late is from before the last one, and reaches back to nothing.
        return np.where(chained, np.maximum(t_ns - before_ns, 0), rows["elapsed_ns"])


def steps_told(spans: Spans, count: int, streams: Sequence[Stream]) -> NDArray[np.int64]:
    """Return how many steps each of the first entries tells of: since the one settled before it."""
    rows, marks = spans.rows[:count], spans.marks[:count]
    made = np.sum([rows[name] for name in STEPS_TOTALS], axis=0)
    told = np.zeros(count, np.int64)
    for number, stream in enumerate(streams):
        ours = _of_stream(marks, number, streams)
        sequence = rows["sequence"][ours]
        _, newest = _newest_before(sequence, stream.sequence)
        sums = made[ours]
        told[ours] = sums - np.where(newest < 0, sum(stream.totals.steps), sums[newest])
    return told


def enter(spans: Spans, count: int, streams: Sequence[Stream]) -> None:
    """Note in their streams that the first entries are in the books."""
    rows, marks = spans.rows[:count], spans.marks[:count]
    for number, stream in enumerate(streams):
        ours = _of_stream(marks, number, streams)
        sequence = rows["sequence"][ours]
        if len(sequence) and sequence.max() > stream.sequence:
            newest = rows[ours][int(sequence.argmax())]
            stream.sequence = int(newest["sequence"])
            stream.highest = max(stream.highest, stream.sequence)
            stream.totals = totals_of(newest)


def _of_stream(marks: Marks, number: int, streams: Sequence[Stream]) -> slice | NDArray[np.bool_]:
    if len(streams) == 1:
        return slice(None)
    ours: NDArray[np.bool_] = marks["stream"] == number
    return ours


def _newest_before(
    sequence: NDArray[np.int64], settled: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the highest number before each record, and where it stands (-1: in the books)."""
    highest = np.maximum.accumulate(np.concatenate(([settled], sequence)))
    places = np.where(sequence > highest[:-1], np.arange(len(sequence)), -1)
    newest = np.maximum.accumulate(np.concatenate(([-1], places)))
    return highest[:-1], newest[:-1]


def _missing(
    rows: Rows, marks: Marks, streams: Sequence[Stream]
) -> Mapping[int, tuple[int, StepTotals]]:
    """Return before which entries records are missing: how many, and the totals before them."""
    found: dict[int, tuple[int, StepTotals]] = {}
    for number, stream in enumerate(streams):
        ours = _of_stream(marks, number, streams)
        sequence, marker = rows["sequence"][ours], marks["marker"][ours]
        before, newest = _newest_before(sequence, stream.sequence)
        lost = sequence - before - ~marker
        for place in np.flatnonzero(lost > 0):
            at = np.arange(len(rows))[ours]
            last = newest[place]
            totals = stream.totals if last < 0 else totals_of(rows[at[last]])
            found[int(at[place])] = int(lost[place]), totals
    return found


def _restored(
    spans: Spans, missing: Mapping[int, tuple[int, StepTotals]], *, overlapped: bool
) -> Spans:
    """Put one entry before each that records are missing before."""
    places = sorted(missing)
    rows, marks = spans.rows[places], np.zeros(len(places), MARK)
    marks["stream"], marks["gap"] = spans.marks["stream"][places], NO_GAP
    for number, (place, step) in enumerate(zip(places, steps_of(rows), strict=True)):
        lost, before = missing[place]
        own = not spans.marks["marker"][place]
        kind = int(spans.marks["kind"][place]) if own else None
        made = restored(before, step, kind, overlapped=overlapped)
        rows["sequence"][number] = step.sequence - own
        rows["elapsed_ns"][number] = made.elapsed_ns
        one = marks[number]
        one["lost"] = lost
        one["prefill_share"], one["dummy_share"] = made.work.prefill_share, made.work.dummy_share
        one["prefill_tokens"], one["decode_tokens"] = made.tokens
    return Spans(
        np.insert(spans.rows, places, rows),
        np.insert(spans.marks, places, marks),
        np.insert(spans.lengths_ns, places, rows["elapsed_ns"]),
        made_up=True,
    )
