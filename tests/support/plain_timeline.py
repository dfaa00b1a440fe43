"""A timeline that recomputes everything each time: a slow and simple reference.

`disagg_exporter.accounting.timelines.step_timeline` keeps earlier results; tests compare it with
this.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import NamedTuple

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import Overflow, WorkShares
from disagg_exporter.accounting.timelines.streams import restored
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Phase, Reason, Step, StepTotals, StreamKey
from disagg_exporter.steps.rows import kind_of, tokens_of
from support.single_steps import divide, preview

PREFILL = WorkShares(1.0)
DECODE = WorkShares(0.0)
DUMMY = WorkShares(0.0, dummy_share=1.0)
_PURE = {wire.CONTEXT: PREFILL, wire.GENERATION: DECODE, wire.DUMMY_STEP: DUMMY}


class Piece(NamedTuple):
    """A stretch of an engine's time: `work`, or None and the reason why there was none."""

    start_ns: int
    end_ns: int
    work: WorkShares | None
    reason: Reason


class Placed(NamedTuple):
    """The place of one span, and how much of it found no room."""

    start_ns: int
    end_ns: int
    overflow_ns: int


def plain_pack(limits_ns: list[int], lengths_ns: list[int], floor_ns: int) -> list[Placed]:
    """Place spans from the last to the first, each as late as allowed."""
    placed: list[Placed] = []
    ceiling_ns = max(limits_ns, default=0)
    for limit_ns, length_ns in zip(reversed(limits_ns), reversed(lengths_ns), strict=True):
        end_ns = max(min(limit_ns, ceiling_ns), floor_ns)
        start_ns = max(end_ns - length_ns, floor_ns)
        placed.append(Placed(start_ns, end_ns, length_ns - (end_ns - start_ns)))
        ceiling_ns = start_ns
    placed.reverse()
    return placed


@dataclass(slots=True, eq=False)
class Stream:
    """The settled part of a stream, and the later records that have arrived."""

    sequence: int
    totals: StepTotals
    seen: set[int] = field(default_factory=set)


@dataclass(slots=True, order=True)
class Entry:
    """A step that is not frozen yet, a heartbeat's marker, or an entry for lost records."""

    t_ns: int
    sequence: int
    elapsed_ns: int = field(compare=False)
    work: WorkShares = field(compare=False)
    stream: Stream = field(compare=False)
    record: Step = field(compare=False)
    kind: int = field(compare=False, default=0)
    tokens: tuple[int, int] = field(compare=False, default=(0, 0))
    pending_work: bool = field(compare=False, default=False)
    gap_after: Reason | None = field(compare=False, default=None)
    marker: bool = field(compare=False, default=False)
    lost: int = field(compare=False, default=0)
    begun: bool = field(compare=False, default=False)
    began_ns: int = field(compare=False, default=0)
    divided: bool = field(compare=False, default=False)

    @property
    def totals(self) -> StepTotals:
        """The running totals in its message."""
        return self.record.totals


class PlainTimeline:
    """Turns the messages of one engine (one data-parallel rank) into frozen pieces."""

    def __init__(self, since_ns: int, rules: Rules, split: StepSplit | None = None) -> None:
        self.mark_ns = since_ns
        self._born_ns = since_ns
        self.pieces: list[Piece] = []
        self.overflows: list[Overflow] = []
        self.tokens = dict.fromkeys(Phase, 0)
        self.late_records = 0
        self.lost_records = 0
        self.last_record_ns = since_ns
        self.work_pending = False
        self._rules = rules
        self._split = split or StepSplit()
        self._overlapped = False
        self._streams: dict[StreamKey, Stream] = {}
        self._pending: list[Entry] = []
        self._last_message_ns = since_ns
        self._committing_ns = since_ns
        self._settled_t_ns = since_ns
        self._settled_pending = False
        self._gap = Reason.NO_REQUEST

    def heartbeat(self, key: StreamKey, said: Step, *, overlapped: bool, now_ns: int) -> None:
        """Ingest a hello or a heartbeat: `said` has the sequence and totals reached, no work."""
        self._overlapped = overlapped
        t_ns = min(said.t_ns, now_ns)
        self._last_message_ns = max(self._last_message_ns, t_ns)
        stream = self._streams.get(key)
        if stream is None:
            # An engine adopted while it works reports that before its next step can.
            stream = self._streams[key] = Stream(said.sequence, said.totals)
            self.work_pending = promises_work(said)
        knows_more = said.sequence > max(stream.seen, default=stream.sequence)
        if knows_more:
            self.work_pending = promises_work(said)
        if not self.work_pending:
            self._committing_ns = max(self._committing_ns, t_ns)
        if knows_more:
            marker = Entry(t_ns, said.sequence, 0, PREFILL, stream, said, marker=True, divided=True)
            insort(self._pending, marker)

    def add(self, key: StreamKey, step: Step, *, now_ns: int) -> None:
        """Ingest one step record; a duplicate, or one before the mark, is counted as late."""
        t_ns = min(step.t_ns, now_ns)
        # The first message of a stream is its baseline: earlier work is not counted.
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(step.sequence - 1, step.totals)
        if step.sequence <= stream.sequence or step.sequence in stream.seen:
            self.late_records += 1
            return
        stream.seen.add(step.sequence)
        kind = kind_of(step)
        entry = Entry(
            t_ns,
            step.sequence,
            self._believable(t_ns, step.elapsed_ns),
            work_of(kind, preview(self._split, step, kind)),
            stream,
            step._replace(elapsed_ns=self._believable(t_ns, step.elapsed_ns)),
            kind=kind,
            tokens=tokens_of(step, kind),
            pending_work=promises_work(step),
            gap_after=gap_after(step),
        )
        insort(self._pending, entry)
        self._last_message_ns = max(self._last_message_ns, t_ns)
        self._committing_ns = max(self._committing_ns, t_ns)
        if t_ns >= self.last_record_ns:
            self.last_record_ns, self.work_pending = t_ns, entry.pending_work

    def live(self, now_ns: int) -> bool:
        """Return whether the engine may hold the watermark back (A6)."""
        return (
            now_ns - self._last_message_ns <= self._rules.live_ns
            and now_ns - self._committing_ns <= self._rules.longest_step_ns
        )

    def advance(self, now_ns: int) -> None:
        """Freeze all time that no plausible record can still change."""
        delay_ns = self._rules.packing_delay_ns
        if self.live(now_ns):
            self._freeze(self._committing_ns - delay_ns)
        else:
            self._freeze(now_ns - delay_ns, silent=True)

    def end(self, t_ns: int) -> None:
        """Freeze everything at the engine's death, as nothing can follow."""
        for entry in self._pending:
            entry.t_ns = min(entry.t_ns, t_ns)
        # One past the death, so that a record stamped at that very instant is inside.
        end_ns = max(t_ns, self.mark_ns) + 1
        silent = t_ns - self._last_message_ns > self._rules.seam_ns
        if silent:
            self._freeze(self._last_message_ns + 1)
        self._freeze(end_ns, silent=silent)
        self.work_pending = False

    def _believable(self, t_ns: int, elapsed_ns: int) -> int:
        """Clip a step's length: not negative, at most one step, not before the engine's start."""
        return max(min(elapsed_ns, self._rules.longest_step_ns, t_ns - self._born_ns), 0)

    def _freeze(self, target_ns: int, *, silent: bool = False) -> None:
        if target_ns <= self.mark_ns:
            return
        entries = self._spans()
        placed = plain_pack([e.t_ns for e, _ in entries], [ns for _, ns in entries], self.mark_ns)
        cursor_ns = self.mark_ns
        unfinished = 0
        for (entry, length_ns), place in zip(entries, placed, strict=True):
            if place.start_ns >= target_ns:
                break
            self._divide(entry, length_ns)
            self._append(cursor_ns, place.start_ns, None, self._gap)
            cursor_ns = min(place.end_ns, target_ns)
            self._append(place.start_ns, cursor_ns, entry.work, Reason.NONE)
            if not entry.begun:
                entry.began_ns = place.start_ns
            if place.end_ns > target_ns:
                self._begin(entry, place.end_ns - target_ns + place.overflow_ns)
                break
            self._settle(entry, place.overflow_ns)
            unfinished += 1
        self._append(cursor_ns, target_ns, None, Reason.NO_RECORD if silent else self._gap)
        self._pending = [e for e, _ in entries[unfinished:] if e.begun or not e.lost]
        for stream in self._streams.values():
            stream.seen = {number for number in stream.seen if number > stream.sequence}
        self.mark_ns = target_ns

    def _spans(self) -> list[tuple[Entry, int]]:
        """Return the pending entries with their lengths, those for lost records included."""
        spans: list[tuple[Entry, int]] = []
        positions = {id(s): (s.sequence, s.totals) for s in self._streams.values()}
        before_ns, work_before = self._settled_t_ns, self._settled_pending
        for entry in self._pending:
            if entry.marker and entry.sequence in entry.stream.seen:
                continue  # the record it refers to has arrived
            sequence, totals = positions[id(entry.stream)]
            if entry.sequence > sequence:
                if entry.sequence > sequence + 1 or entry.marker:
                    lost = self._lost(entry, sequence, totals)
                    if lost is not None:
                        spans.append((lost, lost.elapsed_ns))
                positions[id(entry.stream)] = entry.sequence, entry.totals
            chained = self._overlapped and work_before and not entry.begun and not entry.marker
            reach_ns = max(entry.t_ns - before_ns, 0)
            spans.append((entry, reach_ns if chained else entry.elapsed_ns))
            if not entry.marker:
                before_ns, work_before = entry.t_ns, entry.pending_work
        return spans

    def _lost(self, entry: Entry, sequence: int, totals: StepTotals) -> Entry | None:
        """Return one entry for all records missing between a position and `entry`."""
        own = 0 if entry.marker else 1
        count = entry.sequence - sequence - own
        if count <= 0:
            return None
        kind = None if entry.marker else entry.kind
        made = restored(totals, entry.record, kind, timed=not self._overlapped)
        return Entry(
            entry.t_ns,
            entry.sequence - own,
            made.elapsed_ns,
            made.work,
            entry.stream,
            entry.record,
            tokens=made.tokens,
            lost=count,
            divided=True,
        )

    def _divide(self, entry: Entry, length_ns: int) -> None:
        """Divide an entry's time by phase: once, in the order of records."""
        if entry.lost:
            self._split.skip()
        if not entry.divided:
            entry.divided = True
            steps = sum(entry.totals.steps) - sum(entry.stream.totals.steps)
            share = divide(self._split, entry.record, entry.kind, length_ns, single=steps == 1)
            entry.work = work_of(entry.kind, share)

    def _begin(self, entry: Entry, remaining_ns: int) -> None:
        """Keep the rest of a span that straddles the mark; its earlier part is settled."""
        entry.elapsed_ns, entry.begun = remaining_ns, True
        self._enter(entry)

    def _enter(self, entry: Entry) -> None:
        if entry.sequence > entry.stream.sequence:
            entry.stream.sequence, entry.stream.totals = entry.sequence, entry.totals

    def _settle(self, entry: Entry, overflow_ns: int) -> None:
        self._enter(entry)
        self.lost_records += entry.lost
        self.tokens[Phase.PREFILL] += entry.tokens[0]
        self.tokens[Phase.DECODE] += entry.tokens[1]
        if entry.gap_after is not None:
            self._gap = entry.gap_after
            self._settled_t_ns, self._settled_pending = entry.t_ns, entry.pending_work
        if overflow_ns:
            self.overflows.append(Overflow(entry.work, overflow_ns, entry.began_ns))

    def _append(self, start_ns: int, end_ns: int, work: WorkShares | None, reason: Reason) -> None:
        if end_ns <= start_ns:
            return
        if self.pieces and self.pieces[-1][1:] == (start_ns, work, reason):
            start_ns = self.pieces.pop().start_ns
        self.pieces.append(Piece(start_ns, end_ns, work, reason))


def work_of(kind: int, prefill_share: float) -> WorkShares:
    """Return what a step's time was spent on; `prefill_share` is that of a mixed step."""
    return WorkShares(prefill_share) if kind == wire.MIXED else _PURE[kind]


def promises_work(step: Step) -> bool:
    """Return whether an engine has work pending after a step."""
    return step.running > 0 or step.waiting > 0


def gap_after(step: Step) -> Reason:
    """Return the reason for being idle after a step."""
    if promises_work(step):
        return Reason.HOST_GAP
    return Reason.KV_WAIT if step.deferred > 0 else Reason.NO_REQUEST
