"""One engine's execution: from its messages to a timeline that no longer changes.

A lane collects step records, packs them into spans (`packing`), and freezes what lies below its
*mark*: the point up to which no later record may move anything (accounting A2, A6). Frozen time
is a gapless sequence of pieces, each work or a reason for there being none; devices read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np

from disagg_exporter.accounting.intervals.phase import Overflow, before_step
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import CODES, REASONS, Timeline
from disagg_exporter.accounting.timelines.arriving import fresh, gathered, marked
from disagg_exporter.accounting.timelines.condensing import (
    condensed_pieces,
    condensed_work,
    lost_records,
)
from disagg_exporter.accounting.timelines.entry import MARK, NO_GAP, Marks, Spans, Tokens
from disagg_exporter.accounting.timelines.finalizing import divide, gaps_after, laid_out, owed
from disagg_exporter.accounting.timelines.packing import pack
from disagg_exporter.accounting.timelines.pending_records import PendingRecords, StepLength
from disagg_exporter.accounting.timelines.recent_window import RecentWindow
from disagg_exporter.accounting.timelines.streams import RecordStream, enter
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.model import Reason, Step, StreamKey
from disagg_exporter.model.checkpoints import StreamCheckpoint, TimelineCheckpoint
from disagg_exporter.steps.rows import Rows, rows_of, steps_of

# Records that are put aside at most until the next look.
_MOST_ARRIVED = 4096
# Steps of minutes, of an engine that takes some hundred a second. One that tells more without
# letting time be frozen holds up nobody any longer.
_MOST_UNFROZEN = 2**17


class StepTimeline:
    """The messages of one engine (one data-parallel rank of it), in; frozen pieces, out.

    Records are put aside as they come, because many are looked at as fast as one: what a lane
    shows is what it knew at its last `look`. All other calls look first.
    """

    def __init__(self, since_ns: int, rules: Rules, split: StepSplit | None = None) -> None:
        self.mark_ns = since_ns
        self.timeline = Timeline()
        self.overflows: list[Overflow] = []
        self.tokens: list[Tokens] = []
        self.recents = RecentWindow()
        self.late_records = 0
        self.lost_records = 0
        self.last_step: Step | None = None
        self.last_record_ns = since_ns
        self.promises_work = False
        self._born_ns = since_ns
        self._rules = rules
        self._split = split or StepSplit()
        self._overlapped = self._held_totals = False
        self._numbers: dict[StreamKey, int] = {}
        self._streams: list[RecordStream] = []
        self._arrived: list[tuple[StreamKey, Step | Rows, int]] = []
        self._unfrozen = PendingRecords(since_ns, rules.longest_step_ns)
        self._last_message_ns = since_ns
        self._committing_ns = since_ns
        self._resumed_ns = since_ns
        self._gap = CODES[Reason.NO_REQUEST]

    def heartbeat(
        self,
        key: StreamKey,
        said: Step,
        *,
        overlapped: bool,
        held_totals: bool = False,
        now_ns: int,
    ) -> None:
        """Take a hello or a heartbeat: `said` carries the sequence and totals reached, no work.

        `overlapped` and `held_totals` say how its engine tells how long steps last (`StepLength`).
        """
        self.look()
        self._overlapped, self._held_totals = overlapped, overlapped and held_totals
        t_ns = max(min(said.t_ns, now_ns), 0)  # like those of records
        self._last_message_ns = max(self._last_message_ns, t_ns)
        number = self._numbers.get(key)
        if number is None:
            # An engine adopted in the middle of its work says so, before its next step can.
            number = self._begin(key, RecordStream(said.sequence, said.totals, said.sequence))
            self.promises_work = said.running > 0 or said.waiting > 0
        stream = self._streams[number]
        stream.confirm(said.sequence)
        knows_more = said.sequence > stream.highest
        if knows_more:
            # Of a record that was lost: its state is the latest.
            self.promises_work = said.running > 0 or said.waiting > 0
        if not self.promises_work:
            self._committing_ns = max(self._committing_ns, t_ns)
        if knows_more:
            marks = np.zeros(1, MARK)
            marks["stream"], marks["gap"], marks["marker"] = number, NO_GAP, True
            rows = rows_of([said._replace(t_ns=t_ns, elapsed_ns=0)])
            self._unfrozen.add(rows, marks)

    def add(self, key: StreamKey, told: Step | Rows, *, now_ns: int) -> None:
        """Take one step record, or many; duplicates, and what is older than the books, are late."""
        self._arrived.append((key, told, now_ns))
        if len(self._arrived) >= _MOST_ARRIVED:
            self.look()

    def look(self) -> None:
        """Look at the records that have come since the last look."""
        arrived, self._arrived = self._arrived, []
        for key, told in groupby(arrived, key=lambda one: one[0]):
            self._take(key, gathered([(what, now_ns) for _, what, now_ns in told]))

    def live(self, now_ns: int) -> bool:
        """Say whether the engine may hold the watermark back (A6)."""
        self.look()
        return (
            now_ns - self._last_message_ns <= self._rules.live_ns
            and now_ns - max(self._committing_ns, self._resumed_ns) <= self._rules.longest_step_ns
            and len(self._unfrozen) <= _MOST_UNFROZEN
        )

    def advance(self, now_ns: int) -> None:
        """Freeze all time that no believable record can change any more."""
        delay_ns = self._rules.packing_delay_ns
        if self.live(now_ns):
            self._freeze(self._committing_ns - delay_ns)
        else:
            self._freeze(now_ns - delay_ns, silent=True)

    def end(self, t_ns: int) -> None:
        """Freeze everything at the engine's death: nothing can follow."""
        self.look()
        self._unfrozen.cut(t_ns)
        # One past the death, so that a record stamped at that very instant is inside.
        end_ns = max(t_ns, self.mark_ns) + 1
        silent = t_ns - self._last_message_ns > self._rules.seam_ns
        if silent:
            self._freeze(self._last_message_ns + 1)
        self._freeze(end_ns, silent=silent)
        self.promises_work = False

    def checkpoint(self, engine_index: int, read_ns: Iterable[int]) -> TimelineCheckpoint:
        """Return all that a successor has to know to go on; `read_ns`: up to where devices read."""
        self.look()
        streams, work = self._streams, None
        if self._unfrozen:
            spans = self._unfrozen.spans(streams, self._step_length)
            streams, work = [replace(stream) for stream in streams], condensed_work(spans)
            enter(spans, len(spans.rows), streams)
        last_record_ns, work_left, gap = self._unfrozen.last_record(self._gap)
        return TimelineCheckpoint(
            engine_index,
            self._born_ns,
            self.mark_ns,
            condensed_pieces(self.timeline.pieces, read_ns),
            tuple(
                StreamCheckpoint(key.pid, key.incarnation, stream.sequence, stream.totals)
                for key, stream in zip(self._numbers, streams, strict=True)
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
        """Return the lane of a checkpoint; it waits for its engine as for one just heard (A6)."""
        lane = cls(before.born_ns, rules, split)
        lane.mark_ns = before.mark_ns
        lane.timeline = Timeline.resumed(before.pieces)
        for pid, incarnation, sequence, totals in before.streams:
            key = StreamKey(engine, pid, incarnation, before.engine_index)
            lane._begin(key, RecordStream(sequence, totals, sequence, resumed=True))
        lane._unfrozen.resume(before)
        lane.promises_work = before.work_left
        lane._committing_ns = before.last_record_ns
        lane.last_record_ns = lane._last_message_ns = lane._resumed_ns = resumed_ns
        lane._gap = CODES[before.earlier_gap]
        lane._overlapped, lane._held_totals = before.overlapped, before.held_totals
        return lane

    def start_counting_anew(self) -> None:
        """Reset what the ledger has just taken over."""
        self.overflows.clear()
        self.tokens.clear()
        self.lost_records = self.late_records = 0

    @property
    def _step_length(self) -> StepLength:
        if not self._overlapped:
            return StepLength.ELAPSED
        return StepLength.HELD_TOTALS if self._held_totals else StepLength.RECORD_TO_RECORD

    def _begin(self, key: StreamKey, stream: RecordStream) -> int:
        number = self._numbers[key] = len(self._streams)
        self._streams.append(stream)
        return number

    def _take(self, key: StreamKey, rows: Rows) -> None:
        """Take some records of one stream in."""
        number = self._numbers.get(key)
        if number is None:
            # The first message of a stream is its baseline: what came before is not ours to count.
            first = steps_of(rows[:1])[0]
            totals = before_step(first) if self._held_totals else first.totals
            stream = RecordStream(first.sequence - 1, totals, first.sequence - 1)
            number = self._begin(key, stream)
        stream = self._streams[number]
        new = fresh(rows, stream, lambda: self._unfrozen.sequences(number))
        self.late_records += len(rows) - len(new)
        if not len(new):
            return
        stream.highest = max(stream.highest, int(new["sequence"].max()))
        longest_ns, lengths_ns = self._rules.longest_step_ns, new["elapsed_ns"]
        # Clipped to nothing negative, to one step, and to what began after birth.
        lengths_ns = np.minimum(np.minimum(lengths_ns, longest_ns), new["t_ns"] - self._born_ns)
        new["elapsed_ns"] = np.maximum(lengths_ns, 0)
        marks = marked(new, number, self._split)
        self._unfrozen.add(new, marks)
        self._note(new, marks)

    def _note(self, rows: Rows, marks: Marks) -> None:
        """Note what the newest records say of the engine's state, and what the gauges look at."""
        t_ns, pending = rows["t_ns"], marks["pending"]
        lengths_ns = rows["elapsed_ns"]
        newest_ns = np.maximum.accumulate(np.concatenate(([self.last_record_ns], t_ns)))
        in_order = np.flatnonzero(t_ns >= newest_ns[:-1])
        if len(in_order):
            if self._overlapped:
                before = np.concatenate(([self.promises_work], pending[in_order[:-1]]))
                chained = in_order[before]
                lengths_ns = lengths_ns.copy()
                lengths_ns[chained] = t_ns[chained] - newest_ns[chained]
            last = in_order[-1]
            self.last_record_ns, self.promises_work = int(t_ns[last]), bool(pending[last])
            self.last_step = steps_of(rows[last : last + 1])[0]
        latest_ns = int(newest_ns[-1])
        self._last_message_ns = max(self._last_message_ns, latest_ns)
        self._committing_ns = max(self._committing_ns, latest_ns)
        self.recents.add(t_ns, lengths_ns, marks["prefill_share"], marks["dummy_share"])

    def _freeze(self, target_ns: int, *, silent: bool = False) -> None:
        if target_ns <= self.mark_ns:
            return
        if not self._unfrozen:
            reason = Reason.NO_RECORD if silent else REASONS[self._gap]
            self.timeline.add(self.mark_ns, target_ns, None, reason)
            self.mark_ns = target_ns
            return
        spans = self._unfrozen.spans(self._streams, self._step_length)
        placed = pack(spans.rows["t_ns"], spans.lengths_ns, self.mark_ns)
        count = int(np.searchsorted(placed.start_ns, target_ns))
        divide(spans, count, self._streams, self._split)
        enter(spans, count, self._streams)
        settled = count
        if count and placed.end_ns[count - 1] > target_ns:
            # It straddles the mark: what is left of it is laid out later, its past is settled.
            settled -= 1
            left_ns = placed.end_ns[settled] - target_ns + placed.overflow_ns[settled]
            spans.rows["elapsed_ns"][settled] = left_ns
            spans.marks["begun"][settled] = True
        gaps = gaps_after(spans.marks[:count], self._gap)
        self._gap = int(gaps[settled])
        if silent:
            gaps[-1] = CODES[Reason.NO_RECORD]
        starts_ns, ends_ns = placed.start_ns[:count], np.minimum(placed.end_ns[:count], target_ns)
        within_ns = self.mark_ns, target_ns
        self.timeline.extend(laid_out(spans.marks[:count], starts_ns, ends_ns, within_ns, gaps))
        self._settle(spans, settled, placed.overflow_ns[:settled].tolist())
        self.mark_ns = target_ns

    def _settle(self, spans: Spans, count: int, overflows_ns: list[int]) -> None:
        marks = spans.marks[:count]
        self.lost_records += lost_records(marks)
        t_ns = spans.rows["t_ns"][:count]
        # What was told to no daemon is from before we came: so are those whose it was.
        t_ns = np.where(marks["unheard"], np.minimum(t_ns, self._resumed_ns - 1), t_ns)
        told = t_ns, marks["prefill_tokens"], marks["decode_tokens"]
        # Copies: the memory of what is settled is used again.
        self.tokens.append(Tokens._make(column.copy() for column in told))
        self.overflows += owed(marks, overflows_ns)
        self._unfrozen.keep(spans, count)
