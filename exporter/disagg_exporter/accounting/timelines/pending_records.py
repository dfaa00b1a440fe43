"""Records of an engine that are not finalized yet, and their spans of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np

from disagg_exporter.accounting.intervals.row_queue import Ints, RowQueue
from disagg_exporter.accounting.intervals.timeline import CODES
from disagg_exporter.accounting.timelines.records import MARK, NO_GAP, Marks, Spans
from disagg_exporter.accounting.timelines.streams import (
    MOST_MISSING,
    MissingRecords,
    RecordStream,
    held_totals_since,
    missing,
    restored,
)
from disagg_exporter.model.checkpoints import TimelineCheckpoint
from disagg_exporter.steps.rows import ELAPSED_TOTALS, ROW, Rows, steps_of


class StepLength(Enum):
    """The source of the time for which steps hold their devices.

    `ELAPSED`: each step's own `elapsed`. An overlapped engine's `elapsed` is only a wait, so its
    steps' lengths are the growth of its totals of held time (`HELD_TOTALS`) or, with an older
    plugin, reach from record to record while work is pending (`RECORD_TO_RECORD`).
    """

    ELAPSED = auto()
    HELD_TOTALS = auto()
    RECORD_TO_RECORD = auto()


class PendingRecords:
    """The pending records of one timeline.

    `begun_ns` is when the timeline began: before its first record there was no work. Steps are
    limited to `longest_step_ns`.
    """

    def __init__(self, begun_ns: int, longest_step_ns: int) -> None:
        self._longest_step_ns = longest_step_ns
        self._rows = RowQueue(ROW)
        self._marks = RowQueue(MARK)
        self._markers = False
        # When the last completely finalized record was made, and whether it left work.
        self._finalized = begun_ns, False

    def resume(self, before: TimelineCheckpoint) -> None:
        """Continue with a checkpoint's records, joined in one partly finalized entry."""
        self._finalized = before.last_record_ns, before.work_left
        if before.pending is None:
            return
        length_ns, prefill_share, dummy_share, *tokens, lost, began_ns = before.pending
        rows, marks = np.zeros(1, ROW), np.zeros(1, MARK)
        rows["t_ns"], rows["elapsed_ns"] = before.last_record_ns, length_ns
        rows["sequence"] = before.streams[0].sequence
        marks["prefill_share"], marks["dummy_share"] = prefill_share, dummy_share
        marks["prefill_tokens"], marks["decode_tokens"] = tokens
        marks["gap"], marks["pending"] = CODES[before.gap], before.work_left
        marks["lost"], marks["begun"], marks["began_ns"] = lost, True, began_ns or before.mark_ns
        self._rows.add(rows)
        self._marks.add(marks)

    def last_record(self, gap: int) -> tuple[int, bool, int]:
        """Return when the last record was made, whether it left work, and its gap's code.

        `gap` is the code of the last finalized record.
        """
        if not len(self._rows):
            return *self._finalized, gap
        rows, marks = self._rows.rows, self._marks.rows
        # Nearly always the last entry: only markers have no gap.
        known = np.flatnonzero(marks["gap"] != NO_GAP) if self._markers else [len(marks) - 1]
        if not len(known):
            return *self._finalized, gap
        last = known[-1]
        return int(rows["t_ns"][last]), bool(marks["pending"][last]), int(marks["gap"][last])

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Rows, marks: Marks) -> None:
        """Add records of one stream, or a heartbeat's marker."""
        count = len(self._rows)
        self._rows.add(rows)
        self._marks.add(marks)
        self._markers = self._markers or bool(marks["marker"].any())
        t_ns = self._rows.rows["t_ns"][max(count - 1, 0) :]
        # Nearly all arrive in order, which the times alone show.
        if (t_ns[1:] <= t_ns[:-1]).any():
            rows = self._rows.rows
            order = np.lexsort((rows["sequence"], rows["t_ns"]))
            self._rows.replace(rows[order])
            self._marks.replace(self._marks.rows[order])

    def sequences(self, stream: int) -> Ints:
        """Return the sequence numbers of a stream's pending records."""
        marks = self._marks.rows
        own = (marks["stream"] == stream) & ~marks["marker"] & (marks["lost"] == 0)
        numbers: Ints = self._rows.rows["sequence"][own]
        return numbers

    def spans(self, streams: Sequence[RecordStream], length: StepLength) -> Spans:
        """Return the entries with their lengths, including those that stand for lost records."""
        if self._markers:
            self._drop_overtaken()
        rows, marks = self._rows.rows, self._marks.rows
        lengths_ns = rows["elapsed_ns"]
        lost = list(missing(rows, marks, streams))
        if length is StepLength.HELD_TOTALS:
            lengths_ns = self._by_totals(streams, lost)
        elif length is StepLength.RECORD_TO_RECORD:
            lengths_ns = self._record_to_record(lost)
        spans = Spans(rows, marks, lengths_ns)
        return _with_lost(spans, lost, length) if lost else spans

    def drop(self, spans: Spans, count: int) -> None:
        """Drop the first spans, which are finalized; the next may be partly finalized."""
        rows, marks = spans.rows, spans.marks
        known = np.flatnonzero(marks["gap"][:count] != NO_GAP)
        if len(known):
            last = known[-1]
            self._finalized = int(rows["t_ns"][last]), bool(marks["pending"][last])
        if not spans.made_up:
            self._rows.drop(count)
            self._marks.drop(count)
            return
        rows, marks = rows[count:], marks[count:]
        kept = (marks["lost"] == 0) | marks["begun"]
        self._rows.replace(rows[kept])
        self._marks.replace(marks[kept])

    def cut(self, t_ns: int) -> None:
        """Limit the records' times to the engine's end."""
        rows = self._rows.rows
        rows["t_ns"] = np.minimum(rows["t_ns"], t_ns)

    def _drop_overtaken(self) -> None:
        """Drop the markers whose record has arrived."""
        rows, marks = self._rows.rows, self._marks.rows
        known = np.zeros(len(rows), np.bool_)
        for stream in np.unique(marks["stream"][marks["marker"]]).tolist():
            own = marks["marker"] & (marks["stream"] == stream)
            known |= own & np.isin(rows["sequence"], self.sequences(stream))
        self._rows.replace(rows[~known])
        self._marks.replace(marks[~known])
        self._markers = bool(self._marks.rows["marker"].any())

    def _record_to_record(self, lost: Iterable[MissingRecords]) -> Ints:
        """Return lengths that reach from record to record while work is pending.

        They do not reach across time without a daemon: the engine may have been idle meanwhile.
        """
        rows, marks = self._rows.rows, self._marks.rows
        t_ns = rows["t_ns"]
        records = np.where(marks["marker"], -1, np.arange(len(marks)))
        before = np.empty_like(records)
        before[:1] = -1
        before[1:] = np.maximum.accumulate(records)[:-1]
        first = before < 0
        before_ns = np.where(first, self._finalized[0], t_ns[before])
        chained = np.where(first, self._finalized[1], marks["pending"][before])
        chained &= ~marks["begun"] & ~marks["marker"]
        for gap in lost:
            if gap.no_daemon:
                # The entry there may be a marker; the record follows it.
                chained[gap.place + int((~marks["marker"][gap.place :]).argmax())] = False
        # A late record is older than the one before it, so its length is 0.
        return np.where(chained, np.maximum(t_ns - before_ns, 0), rows["elapsed_ns"])

    def _by_totals(self, streams: Sequence[RecordStream], lost: Iterable[MissingRecords]) -> Ints:
        """Return lengths by the growth of the totals of held time.

        After a gap that includes the missing steps: a step's own length is then its `elapsed`.
        """
        rows, marks = self._rows.rows, self._marks.rows
        held_ns = np.clip(held_totals_since(rows, marks, streams), 0, self._longest_step_ns)
        alone = ~marks["begun"] & ~marks["marker"]
        alone[[gap.place for gap in lost]] = False
        return np.where(alone, held_ns, rows["elapsed_ns"])


def _with_lost(spans: Spans, lost: Iterable[MissingRecords], length: StepLength) -> Spans:
    """Insert one entry for the missing records before each gap's end."""
    gaps = sorted(lost, key=lambda one: one.place)
    places = [gap.place for gap in gaps]
    rows, marks = spans.rows[places], np.zeros(len(places), MARK)
    marks["stream"], marks["gap"] = spans.marks["stream"][places], NO_GAP
    for number, (gap, step) in enumerate(zip(gaps, steps_of(rows), strict=True)):
        own = not spans.marks["marker"][gap.place]
        kind = int(spans.marks["kind"][gap.place]) if own else None
        made = restored(gap.totals, step, kind, timed=length is not StepLength.RECORD_TO_RECORD)
        rows["sequence"][number] = step.sequence - own
        if kind is not None:
            # If finalized alone, it must leave the step its own time, which only these totals have.
            held = rows[ELAPSED_TOTALS[kind]]
            held[number] = max(held[number] - step.elapsed_ns, 0)
        rows["elapsed_ns"][number] = made.elapsed_ns
        one = marks[number]
        one["lost"], one["no_daemon"] = min(gap.records, MOST_MISSING), gap.no_daemon
        one["prefill_share"], one["dummy_share"] = made.work.prefill_share, made.work.dummy_share
        one["prefill_tokens"], one["decode_tokens"] = made.tokens
    return Spans(
        np.insert(spans.rows, places, rows),
        np.insert(spans.marks, places, marks),
        np.insert(spans.lengths_ns, places, rows["elapsed_ns"]),
        made_up=True,
    )
