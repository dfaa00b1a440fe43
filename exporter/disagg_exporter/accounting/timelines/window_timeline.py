"""Turns the windows of an engine without step records into a finalized timeline.

A window reports how long an engine was busy between two scrapes, and with what. Nothing later can
change it, so its time is finalized at once: no packing, no carry-over (docs/accounting.md, A2).
Its busy time lies where the devices were active, sample by sample, so that activity which the
engine explains is not attributed to another process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from disagg_exporter.accounting.intervals.activity import ActivitySample
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import Overflow, Timeline, WorkShares
from disagg_exporter.accounting.timelines.recent_window import RecentWindow
from disagg_exporter.accounting.timelines.records import Tokens
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.model import Reason, Step, WorkWindow
from disagg_exporter.model.checkpoints import TimelineCheckpoint


class WindowTimeline:
    """Windows of one engine → finalized pieces, read like those of a `StepTimeline`."""

    def __init__(self, since_ns: int, rules: Rules) -> None:
        self.mark_ns = since_ns
        self.timeline = Timeline()
        self.overflows: list[Overflow] = []
        self.tokens: list[Tokens] = []
        self.recent = RecentWindow()
        self.late_records = 0
        self.lost_records = 0
        self.last_step: Step | None = None
        self.last_record_ns = since_ns
        self.work_pending = False
        self.last_window: WorkWindow | None = None
        self._rules = rules

    def add(self, window: WorkWindow, samples: Sequence[ActivitySample]) -> None:
        """Finalize one window; one that ends below the mark is late and changes nothing.

        `samples` are the mean activity of the engine's devices since the mark. They give its busy
        time if the window has none itself; time after the last sample is finalized with the next
        window.
        """
        if window.end_ns <= max(self.mark_ns, self.last_record_ns):
            self.late_records += 1
            return
        if window.start_ns > self.last_record_ns + self._rules.seam_ns:
            self._skip(window.start_ns)
        if window.busy_ns is not None:
            samples = (_whole(self.mark_ns, window.end_ns, window.busy_ns),)
        for sample in samples:
            self._finalize(sample, window)
        self.last_record_ns = window.end_ns
        numbers = window.end_ns, window.prefill_tokens, window.decode_tokens
        self.tokens.append(Tokens._make(np.array([number], np.int64) for number in numbers))
        self.work_pending = window.pending
        self.last_window, self.last_step = window, _load(window)

    def checkpoint(self, engine_index: int, read_ns: Iterable[int]) -> TimelineCheckpoint:
        """Return the pieces that devices have yet to read beyond `read_ns`."""
        pieces = self.timeline.checkpoint(read_ns)
        return TimelineCheckpoint(engine_index, self.mark_ns, self.mark_ns, pieces)

    def ingest(self) -> None:
        """Do nothing: windows are not queued."""

    def is_live(self, now_ns: int) -> bool:
        """Return whether the engine may hold the watermark back (A6)."""
        return now_ns - self.mark_ns <= self._rules.live_ns

    def advance(self, now_ns: int) -> None:
        """Finalize the time of a silent engine, or of silent devices, as unknown."""
        if not self.is_live(now_ns):
            self._skip(now_ns - self._rules.packing_delay_ns)

    def end(self, t_ns: int) -> None:
        """Finalize everything at the engine's death, or when another source takes over."""
        end_ns = max(t_ns, self.mark_ns) + 1
        gap = Reason.HOST_GAP if self.work_pending else Reason.NO_REQUEST
        if t_ns - self.last_record_ns > self._rules.seam_ns:
            gap = Reason.NO_RECORD
        self.timeline.add(self.mark_ns, end_ns, None, gap)
        self.mark_ns = end_ns
        self.work_pending = False

    def reset_counts(self) -> None:
        """Reset the counts that the ledger has just collected."""
        self.tokens.clear()
        self.lost_records = self.late_records = 0

    def _finalize(self, sample: ActivitySample, window: WorkWindow) -> None:
        """Finalize the time up to the end of a sample, with the busy part last."""
        end_ns = min(sample.end_ns, window.end_ns)
        open_ns = end_ns - max(sample.start_ns, self.mark_ns)
        if open_ns <= 0:
            return
        if sample.start_ns - self.mark_ns > self._rules.seam_ns:
            self._skip(sample.start_ns)
        busy_ns = round(open_ns * min(max(sample.busy_ratio, 0.0), 1.0))
        self.timeline.add(self.mark_ns, end_ns - busy_ns, None, _gap(window))
        if busy_ns:
            work = WorkShares(window.prefill_share)
            self.timeline.add(end_ns - busy_ns, end_ns, work, Reason.NONE)
            self.recent.add_one(end_ns, busy_ns, work)
        self.mark_ns = end_ns

    def _skip(self, until_ns: int) -> None:
        """Finalize time for which there is no report."""
        self.timeline.add(self.mark_ns, until_ns, None, Reason.NO_RECORD)
        self.mark_ns = max(self.mark_ns, until_ns)


EngineTimeline = StepTimeline | WindowTimeline


def _whole(start_ns: int, end_ns: int, busy_ns: int) -> ActivitySample:
    """Return a window that reports its busy time as one sample."""
    return ActivitySample(start_ns, end_ns, busy_ns / max(end_ns - start_ns, 1))


def _gap(window: WorkWindow) -> Reason:
    """Return the reason for the idle time within a window."""
    if window.pending:
        return Reason.HOST_GAP
    return Reason.KV_WAIT if window.deferred else Reason.NO_REQUEST


def _load(window: WorkWindow) -> Step | None:
    """Return the window's requests as a step; None if it reports none."""
    if window.running is None:
        return None
    return Step(
        t_ns=window.end_ns,
        elapsed_ns=0,
        sequence=0,
        running=window.running,
        waiting=window.waiting or 0,
        deferred=window.deferred or 0,
        kv_usage_ratio=window.kv_usage_ratio,
    )
