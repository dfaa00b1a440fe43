"""One engine's execution: from its messages to a timeline that no longer changes.

A lane collects step records, packs them into spans (`packing`), and freezes what lies below its
*mark*: the point up to which no later record may move anything (accounting A2, A6). Frozen time
is a gapless sequence of pieces, each work or a reason for there being none; devices read them.
"""

from __future__ import annotations

from bisect import bisect_right

from disagg_exporter.accounting.entry import (
    Entry,
    Overflow,
    Piece,
    Recent,
    Stream,
    gap_after,
    promises_work,
)
from disagg_exporter.accounting.packing import pack_before
from disagg_exporter.accounting.phase import PREFILL, Work, kind_of, tokens_of, work_of
from disagg_exporter.accounting.recents import Recents
from disagg_exporter.accounting.rules import Rules
from disagg_exporter.accounting.unfrozen import Unfrozen
from disagg_exporter.model import Phase, Reason, Step, StreamKey
from disagg_exporter.stepsplit import StepSplit


class Lane:
    """The messages of one engine (one data-parallel rank of it), in; frozen pieces, out."""

    def __init__(self, since_ns: int, rules: Rules, split: StepSplit | None = None) -> None:
        self.mark_ns = since_ns
        self._born_ns = since_ns
        self.pieces: list[Piece] = []
        self.overflows: list[Overflow] = []
        self.tokens = dict.fromkeys(Phase, 0)
        self.recents = Recents()
        self.late_records = 0
        self.lost_records = 0
        self.last_step: Step | None = None
        self.last_record_ns = since_ns
        self.promises_work = False
        self._rules = rules
        self._split = split or StepSplit()
        self._overlapped = False
        self._streams: dict[StreamKey, Stream] = {}
        self._unfrozen = Unfrozen(since_ns)
        self._last_message_ns = since_ns
        self._committing_ns = since_ns
        self._gap = Reason.NO_REQUEST

    def hear(self, key: StreamKey, said: Step, *, overlapped: bool, now_ns: int) -> None:
        """Take a hello or a heartbeat: `said` carries the sequence and totals reached, no work."""
        self._overlapped = overlapped
        t_ns = min(said.t_ns, now_ns)
        self._last_message_ns = max(self._last_message_ns, t_ns)
        stream = self._streams.get(key)
        if stream is None:
            # An engine adopted in the middle of its work says so, before its next step can.
            stream = self._streams[key] = Stream(said.sequence, said.totals)
            self.promises_work = promises_work(said)
        if not self.promises_work:
            self._committing_ns = max(self._committing_ns, t_ns)
        if said.sequence > max(stream.seen, default=stream.sequence):
            marker = Entry(t_ns, said.sequence, 0, PREFILL, stream, totals=said.totals, marker=True)
            self._unfrozen.add(marker)

    def add(self, key: StreamKey, step: Step, *, now_ns: int) -> None:
        """Take one step record; a duplicate, or one older than the books, is counted as late."""
        t_ns = min(step.t_ns, now_ns)
        # The first message of a stream is its baseline: what came before it is not ours to count.
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(step.sequence - 1, step.totals)
        if step.sequence <= stream.sequence or step.sequence in stream.seen:
            self.late_records += 1
            return
        stream.seen.add(step.sequence)
        kind, pending = kind_of(step), promises_work(step)
        entry = Entry(
            t_ns,
            step.sequence,
            self._believable(t_ns, step.elapsed_ns),
            work_of(kind, self._split.glance(step, kind)),
            stream,
            kind=kind,
            tokens=tokens_of(step, kind),
            totals=step.totals,
            pending_work=pending,
            gap_after=Reason.HOST_GAP if pending else gap_after(step),
            step=step,
        )
        self._unfrozen.add(entry)
        self._last_message_ns = max(self._last_message_ns, t_ns)
        self._committing_ns = max(self._committing_ns, t_ns)
        length_ns = entry.elapsed_ns
        if t_ns >= self.last_record_ns:
            if self._overlapped and self.promises_work:
                length_ns = t_ns - self.last_record_ns
            self.last_record_ns, self.promises_work = t_ns, entry.pending_work
            self.last_step = step
        self.recents.add(Recent(t_ns, length_ns, entry.work))

    def live(self, now_ns: int) -> bool:
        """Say whether the engine may hold the watermark back (A6)."""
        return (
            now_ns - self._last_message_ns <= self._rules.live_ns
            and now_ns - self._committing_ns <= self._rules.longest_step_ns
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
        self._unfrozen.cut(t_ns)
        # One past the death, so that a record stamped at that very instant is inside.
        end_ns = max(t_ns, self.mark_ns) + 1
        silent = t_ns - self._last_message_ns > self._rules.seam_ns
        if silent:
            self._freeze(self._last_message_ns + 1)
        self._freeze(end_ns, silent=silent)
        self.promises_work = False

    def between(self, start_ns: int, end_ns: int) -> list[Piece]:
        """Return the frozen pieces that overlap the stretch, in order, uncut."""
        first = max(bisect_right(self.pieces, start_ns, key=lambda piece: piece.start_ns) - 1, 0)
        found = []
        for piece in self.pieces[first:]:
            if piece.start_ns >= end_ns:
                break
            if piece.end_ns > start_ns:
                found.append(piece)
        return found

    def forget_before(self, t_ns: int) -> None:
        """Drop the pieces that every device has read."""
        keep = bisect_right(self.pieces, t_ns, key=lambda piece: piece.end_ns)
        del self.pieces[:keep]

    def start_counting_anew(self) -> None:
        """Reset what the ledger has just taken over."""
        self.overflows.clear()
        self.tokens = dict.fromkeys(Phase, 0)
        self.lost_records = self.late_records = 0

    def _believable(self, t_ns: int, elapsed_ns: int) -> int:
        """Clip a step's length: to nothing negative, to one step, and to what began after birth."""
        return max(min(elapsed_ns, self._rules.longest_step_ns, t_ns - self._born_ns), 0)

    def _freeze(self, target_ns: int, *, silent: bool = False) -> None:
        if target_ns <= self.mark_ns:
            return
        spans = self._unfrozen.spans(overlapped=self._overlapped)
        limits_ns = [entry.t_ns for entry in spans]
        placed = pack_before(
            target_ns, limits_ns, [entry.length_ns for entry in spans], self.mark_ns
        )
        cursor_ns = self.mark_ns
        settled = 0
        for entry, place in zip(spans, placed, strict=False):
            self._divide(entry)
            self._append(cursor_ns, place.start_ns, None, self._gap)
            cursor_ns = min(place.end_ns, target_ns)
            self._append(place.start_ns, cursor_ns, entry.work, Reason.NONE)
            if place.end_ns > target_ns:
                self._begin(entry, place.end_ns - target_ns + place.overflow_ns)
                break
            self._settle(entry, place.overflow_ns)
            settled += 1
        self._append(cursor_ns, target_ns, None, Reason.NO_RECORD if silent else self._gap)
        self._unfrozen.drop(settled)
        for stream in self._streams.values():
            stream.forget_settled()
        self.mark_ns = target_ns

    def _divide(self, entry: Entry) -> None:
        """Say which phases an entry's time was for: once, in the order of records."""
        if entry.lost:
            self._split.skip()
        step, entry.step = entry.step, None
        if step is not None:
            told = sum(entry.totals.steps) - sum(entry.stream.totals.steps)
            share = self._split.settle(step, entry.kind, entry.length_ns, single=told == 1)
            entry.work = work_of(entry.kind, share)

    def _begin(self, entry: Entry, remaining_ns: int) -> None:
        """Keep what is left of a span that straddles the mark; its past is settled."""
        entry.elapsed_ns = entry.length_ns = remaining_ns
        entry.begun = True
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
        self._unfrozen.settle(entry)
        if overflow_ns:
            self.overflows.append(Overflow(entry.work, overflow_ns))

    def _append(self, start_ns: int, end_ns: int, work: Work | None, reason: Reason) -> None:
        if end_ns <= start_ns:
            return
        if self.pieces:
            last = self.pieces[-1]
            # Work is compared last: it takes longest, and what is pure is one object.
            same = last.end_ns == start_ns and last.reason is reason
            if same and (last.work is work or last.work == work):
                start_ns = self.pieces.pop().start_ns
        self.pieces.append(Piece(start_ns, end_ns, work, reason))
