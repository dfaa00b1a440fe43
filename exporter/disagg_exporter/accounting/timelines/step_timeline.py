"""Turns the messages of one engine into a finalized timeline.

A timeline collects step records, packs them into spans and finalizes the time below its *mark*:
the point up to which no later record may move anything (accounting A2, A6). Finalized time is a
gapless sequence of pieces, each either work or the reason for none; devices read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import CODES, REASONS, Overflow, Timeline
from disagg_exporter.accounting.timelines import finalization, streams
from disagg_exporter.accounting.timelines.pending_records import PendingRecords, StepLength
from disagg_exporter.accounting.timelines.recent_window import RecentWindow
from disagg_exporter.accounting.timelines.records import (
    MARK,
    NO_GAP,
    Marks,
    Spans,
    Tokens,
    gathered,
    is_at_work,
    lost_records,
    marked,
)
from disagg_exporter.accounting.timelines.streams import RecordStream
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.model import Reason, Step, StreamKey
from disagg_exporter.model.checkpoints import StreamCheckpoint, TimelineCheckpoint
from disagg_exporter.steps.rows import Rows, rows_of, steps_of

# Maximum number of queued records.
_MOST_QUEUED = 4096
# Minutes of steps at some hundred a second. An engine with more records that wait to be finalized
# no longer holds back the watermark.
_MOST_PENDING = 2**17


class StepTimeline:
    """Messages of one engine (one data-parallel rank of it) → finalized pieces.

    Records are queued, because ingesting many costs no more than one: attributes are as of the
    last `ingest`. All other calls ingest first. `awaited` is set before a heartbeat;
    `committing_ns` is the time of the last message that commits (A6).
    """

    def __init__(self, since_ns: int, rules: Rules, split: StepSplit | None = None) -> None:
        self.mark_ns = self._start_ns = since_ns
        self.timeline = Timeline()
        self.overflows: list[Overflow] = []
        self.tokens: list[Tokens] = []
        self.recent = RecentWindow()
        self.lost_records = self.late_records = 0
        self.last_step: Step | None = None
        self.last_record_ns = since_ns
        self.work_pending = self.awaited = False
        self._rules, self._split = rules, split or StepSplit()
        self._overlapped = self._held_totals = False
        self._numbers: dict[StreamKey, int] = {}
        self._streams: list[RecordStream] = []
        self._queued: list[tuple[StreamKey, Step | Rows, int]] = []
        self._pending = PendingRecords(since_ns, rules.longest_step_ns)
        self._last_message_ns = self.committing_ns = self._resumed_ns = since_ns
        self._gap = CODES[Reason.NO_REQUEST]

    def heartbeat(
        self,
        key: StreamKey,
        message: Step,
        *,
        overlapped: bool,
        held_totals: bool = False,
        now_ns: int,
    ) -> None:
        """Ingest a hello or heartbeat: `message` has the sequence and totals reached, no work.

        `overlapped` and `held_totals` select the source of steps' lengths (`StepLength`).
        """
        t_ns = max(min(message.t_ns, now_ns), 0)  # as for records
        self._last_message_ns = max(self._last_message_ns, t_ns)
        reached, source = message.sequence, (overlapped, overlapped and held_totals)
        if source == (self._overlapped, self._held_totals) and self.is_queued_at_work(key, reached):
            return  # it adds nothing to the queued record
        self.ingest()
        self._overlapped, self._held_totals = source
        is_new = key not in self._numbers
        if is_new:
            self._add_stream(key, RecordStream(reached, message.totals, reached))
        number = self._numbers[key]
        stream = self._streams[number]
        stream.confirm(reached)
        knows_more = reached > stream.highest
        # The heartbeat of an engine adopted in the middle of its work precedes its next record;
        # where a record was lost, the heartbeat has the latest state.
        if is_new or knows_more:
            self.work_pending = message.running > 0 or message.waiting > 0
        if not (self.work_pending or self.awaited):
            self.committing_ns = max(self.committing_ns, t_ns)
        if knows_more:
            marks = np.zeros(1, MARK)
            marks["stream"], marks["gap"], marks["marker"] = number, NO_GAP, True
            rows = rows_of([message._replace(t_ns=t_ns, elapsed_ns=0)])
            self._pending.add(rows, marks)

    def add(self, key: StreamKey, records: Step | Rows, *, now_ns: int) -> None:
        """Queue step records; duplicates, and those already finalized, count as late."""
        self._queued.append((key, records, now_ns))
        if len(self._queued) >= _MOST_QUEUED:
            self.ingest()

    def ingest(self) -> None:
        """Ingest the queued records."""
        queued, self._queued = self._queued, []
        for key, received in groupby(queued, key=lambda one: one[0]):
            self._ingest(key, gathered([(records, now_ns) for _, records, now_ns in received]))

    def is_live(self, now_ns: int) -> bool:
        """Return whether the engine may hold the watermark back (A6)."""
        self.ingest()
        return (
            now_ns - self._last_message_ns <= self._rules.live_ns
            and now_ns - max(self.committing_ns, self._resumed_ns) <= self._rules.longest_step_ns
            and len(self._pending) <= _MOST_PENDING
        )

    def advance(self, now_ns: int) -> None:
        """Finalize all time that no acceptable record can change any more."""
        delay_ns = self._rules.packing_delay_ns
        if self.is_live(now_ns):
            self._finalize(self.committing_ns - delay_ns)
        else:
            self._finalize(now_ns - delay_ns, silent=True)

    def end(self, t_ns: int) -> None:
        """Finalize everything at the engine's death: nothing can follow."""
        self.ingest()
        self._pending.cut(t_ns)
        # One past the death, so that a record stamped at that instant is included.
        end_ns = max(t_ns, self.mark_ns) + 1
        # How long a step without a record ran is unknown.
        known_ns = self.committing_ns if self.awaited else self._last_message_ns
        if silent := self.awaited or t_ns - known_ns > self._rules.seam_ns:
            self._finalize(known_ns + 1)
        self._finalize(end_ns, silent=silent)
        self.work_pending = False

    def checkpoint(self, engine_index: int, read_ns: Iterable[int]) -> TimelineCheckpoint:
        """Return the state to continue from; `read_ns`: up to where devices have read."""
        self.ingest()
        reached, work = self._streams, None
        if self._pending:
            spans = self._pending.spans(reached, self._step_length)
            reached, work = [replace(stream) for stream in reached], spans.checkpoint()
            streams.finalize(spans, len(spans.rows), reached)
        last_record_ns, work_left, gap = self._pending.last_record(self._gap)
        return TimelineCheckpoint(
            engine_index,
            self._start_ns,
            self.mark_ns,
            self.timeline.checkpoint(read_ns),
            tuple(
                StreamCheckpoint(key.pid, key.incarnation, stream.sequence, stream.totals)
                for key, stream in zip(self._numbers, reached, strict=True)
            ),
            work,
            last_record_ns,
            work_left,
            REASONS[gap],
            REASONS[self._gap],
            self._overlapped,
            self._held_totals,
        )

    @classmethod
    def resumed(
        cls,
        engine: str,
        before: TimelineCheckpoint,
        resumed_ns: int,
        rules: Rules,
        split: StepSplit | None = None,
    ) -> StepTimeline:
        """Return the timeline of a checkpoint; its engine counts as live at `resumed_ns` (A6)."""
        timeline = cls(before.born_ns, rules, split)
        timeline.mark_ns = before.mark_ns
        timeline.timeline = Timeline.resumed(before.pieces)
        for pid, incarnation, sequence, totals in before.streams:
            key = StreamKey(engine, pid, incarnation, before.engine_index)
            timeline._add_stream(key, RecordStream(sequence, totals, sequence, resumed=True))
        timeline._pending.resume(before)
        timeline.work_pending = before.work_left
        timeline.committing_ns = before.last_record_ns
        timeline.last_record_ns = timeline._last_message_ns = timeline._resumed_ns = resumed_ns
        timeline._gap = CODES[before.earlier_gap]
        timeline._overlapped, timeline._held_totals = before.overlapped, before.held_totals
        return timeline

    def is_queued_at_work(self, key: StreamKey, sequence: int) -> bool:
        """Return whether the last queued record is this new one, the newest, and leaves work."""
        if not self._queued or self._queued[-1][0] != key or key not in self._numbers:
            return False
        queued = [records for _, records, _ in self._queued]
        is_new = sequence > self._streams[self._numbers[key]].highest
        return is_new and is_at_work(queued, sequence, self.last_record_ns)

    def reset_counts(self) -> None:
        """Reset the counts that the ledger has just collected."""
        self.overflows.clear()
        self.tokens.clear()
        self.lost_records = self.late_records = 0

    @property
    def _step_length(self) -> StepLength:
        if not self._overlapped:
            return StepLength.ELAPSED
        return StepLength.HELD_TOTALS if self._held_totals else StepLength.RECORD_TO_RECORD

    def _add_stream(self, key: StreamKey, stream: RecordStream) -> None:
        self._numbers[key] = len(self._streams)
        self._streams.append(stream)

    def _ingest(self, key: StreamKey, rows: Rows) -> None:
        """Ingest records of one stream."""
        if key not in self._numbers:
            # The first message of a stream is its baseline: nothing earlier is counted.
            first = steps_of(rows[:1])[0]
            self._add_stream(key, RecordStream.before(first, held_totals=self._held_totals))
        number = self._numbers[key]
        stream = self._streams[number]
        new = stream.fresh(rows, lambda: self._pending.sequences(number))
        self.late_records += len(rows) - len(new)
        if not len(new):
            return
        stream.highest = max(stream.highest, int(new["sequence"].max()))
        longest_ns, lengths_ns = self._rules.longest_step_ns, new["elapsed_ns"]
        # Clipped to at least 0, at most one step, and a start after that of the timeline.
        lengths_ns = np.minimum(np.minimum(lengths_ns, longest_ns), new["t_ns"] - self._start_ns)
        new["elapsed_ns"] = np.maximum(lengths_ns, 0)
        marks = marked(new, number, self._split)
        self._pending.add(new, marks)
        self._update_state(new, marks)

    def _update_state(self, rows: Rows, marks: Marks) -> None:
        """Update the engine's state and the fast gauges' window from new records."""
        t_ns, pending = rows["t_ns"], marks["pending"]
        lengths_ns = rows["elapsed_ns"]
        newest_ns = np.maximum.accumulate(np.concatenate(([self.last_record_ns], t_ns)))
        in_order = np.flatnonzero(t_ns >= newest_ns[:-1])
        if len(in_order):
            if self._overlapped:
                before = np.concatenate(([self.work_pending], pending[in_order[:-1]]))
                chained = in_order[before]
                lengths_ns = lengths_ns.copy()
                lengths_ns[chained] = t_ns[chained] - newest_ns[chained]
            last = in_order[-1]
            self.last_record_ns, self.work_pending = int(t_ns[last]), bool(pending[last])
            self.last_step = steps_of(rows[last : last + 1])[0]
        latest_ns = int(newest_ns[-1])
        self._last_message_ns = max(self._last_message_ns, latest_ns)
        self.committing_ns = max(self.committing_ns, latest_ns)
        self.awaited = False
        self.recent.add(t_ns, lengths_ns, marks["prefill_share"], marks["dummy_share"])

    def _finalize(self, target_ns: int, *, silent: bool = False) -> None:
        if target_ns <= self.mark_ns:
            return
        if not self._pending:
            reason = Reason.NO_RECORD if silent else REASONS[self._gap]
            self.timeline.add(self.mark_ns, target_ns, None, reason)
            self.mark_ns = target_ns
            return
        spans = self._pending.spans(self._streams, self._step_length)
        placed = finalization.pack(spans.rows["t_ns"], spans.lengths_ns, self.mark_ns)
        count = int(np.searchsorted(placed.start_ns, target_ns))
        finalization.divide(spans, count, self._streams, self._split, held_totals=self._held_totals)
        streams.finalize(spans, count, self._streams)
        finalized = count
        if count and placed.end_ns[count - 1] > target_ns:
            # It straddles the mark: the rest is laid out later.
            finalized -= 1
            finalization.begin(spans, finalized, placed, target_ns)
        gaps = finalization.gaps_after(spans.marks[:count], self._gap)
        self._gap = int(gaps[finalized])
        if silent:
            gaps[-1] = CODES[Reason.NO_RECORD]
        starts_ns, ends_ns = placed.start_ns[:count], np.minimum(placed.end_ns[:count], target_ns)
        within_ns = self.mark_ns, target_ns
        pieces = finalization.laid_out(spans.marks[:count], starts_ns, ends_ns, within_ns, gaps)
        self.timeline.extend(pieces)
        self._drop(spans, finalized, placed)
        self.mark_ns = target_ns

    def _drop(self, spans: Spans, count: int, placed: finalization.Placed) -> None:
        """Count the tokens, losses and overflows of finalized records, then drop these."""
        marks = spans.marks[:count]
        self.lost_records += lost_records(marks)
        t_ns = spans.rows["t_ns"][:count]
        # Records that no daemon received predate this daemon: they go to the role of that time.
        t_ns = np.where(marks["no_daemon"], np.minimum(t_ns, self._resumed_ns - 1), t_ns)
        columns = t_ns, marks["prefill_tokens"], marks["decode_tokens"]
        # Copies: the memory of finalized records is reused.
        self.tokens.append(Tokens._make(column.copy() for column in columns))
        self.overflows += finalization.overflows(marks, placed)
        self._pending.drop(spans, count)
