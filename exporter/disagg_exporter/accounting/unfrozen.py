"""What an engine told and is not frozen yet: its records, and the spans of time they make.

Every second a lane looks at all of it and freezes some. So a span is made once, when its record
is first looked at, and made anew only where something came that may change it: a record from
before others, a heartbeat that knows more than we do, an end.
"""

from __future__ import annotations

from bisect import insort
from itertools import islice

from disagg_exporter.accounting.entry import Entry, Stream
from disagg_exporter.accounting.restore import restored
from disagg_exporter.model import StepTotals


class Unfrozen:
    """The records of one lane in the order in which they were made.

    `begun_ns` is when the lane began: before its first record there was no work.
    """

    def __init__(self, begun_ns: int) -> None:
        self._entries: list[Entry] = []
        self._overlapped = False
        # The last record that is frozen whole: when it was made, and whether it left work.
        self._settled = begun_ns, False
        # The spans of the first `_known` entries, and what the next one follows.
        self._spans: list[Entry] = []
        self._known = 0
        self._positions: dict[Stream, tuple[int, StepTotals]] = {}
        self._before = self._settled
        self._markers = self._lost = False

    def add(self, entry: Entry) -> None:
        """Take a record, or a heartbeat's marker."""
        self._markers = self._markers or entry.marker
        last_ns = self._entries[-1].t_ns if self._entries else entry.t_ns - 1
        # Nearly all come in order, which the times alone can tell.
        if entry.t_ns <= last_ns and entry < self._entries[-1]:
            insort(self._entries, entry)
            self._start_over()
        else:
            self._entries.append(entry)

    def spans(self, *, overlapped: bool) -> list[Entry]:
        """Return the entries with their lengths, those that stand for lost records among them."""
        if overlapped is not self._overlapped or self._markers:
            self._overlapped = overlapped
            self._start_over()
        before_ns, work_before = self._before
        for entry in islice(self._entries, self._known, None):
            if entry.marker and entry.sequence in entry.stream.seen:
                continue  # the record it knew of has come
            self._restore(entry)
            chained = overlapped and work_before and not entry.begun and not entry.marker
            # A record that comes late is from before the last one, and reaches back to nothing.
            reach_ns = max(entry.t_ns - before_ns, 0)
            entry.length_ns = reach_ns if chained else entry.elapsed_ns
            self._spans.append(entry)
            if not entry.marker:
                before_ns, work_before = entry.t_ns, entry.pending_work
        self._before = before_ns, work_before
        self._known = len(self._entries)
        return self._spans

    def settle(self, entry: Entry) -> None:
        """Note that a span is frozen whole."""
        if entry.gap_after is not None:
            self._settled = entry.t_ns, entry.pending_work

    def drop(self, count: int) -> None:
        """Forget the first spans: they are settled. The next may have been begun."""
        whole = len(self._spans) == len(self._entries) and not self._lost
        del self._spans[:count]
        if whole:
            # As nearly always: they are the same, and thousands need not be looked at.
            del self._entries[:count]
        else:
            self._entries = [e for e in self._spans if e.begun or not e.lost]
            self._lost = any(e.lost for e in self._spans)
        self._known = len(self._entries)
        self._markers = self._markers and any(e.marker for e in self._entries)

    def cut(self, t_ns: int) -> None:
        """Let no record be later than its engine's end."""
        for entry in self._entries:
            entry.t_ns = min(entry.t_ns, t_ns)
        self._start_over()

    def _start_over(self) -> None:
        self._spans.clear()
        self._known = 0
        self._positions.clear()
        self._before = self._settled

    def _restore(self, entry: Entry) -> None:
        """Put one span before an entry for all the records that are missing there."""
        stream = entry.stream
        sequence, totals = self._positions.get(stream) or (stream.sequence, stream.totals)
        if entry.sequence <= sequence:
            return
        if entry.sequence > sequence + 1 or entry.marker:
            lost = restored(entry, sequence, totals, overlapped=self._overlapped)
            if lost is not None:
                lost.length_ns = lost.elapsed_ns
                self._spans.append(lost)
                self._lost = True
        self._positions[stream] = entry.sequence, entry.totals
