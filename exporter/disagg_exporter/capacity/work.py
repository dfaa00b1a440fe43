"""Records of many streams: queued as they arrive, then processed together as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.capacity.curves.curve import classes_of
from disagg_exporter.capacity.curves.utilization import FIELDS, LoadTally
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StreamKey
from disagg_exporter.steps.rows import (
    ELAPSED_TOTALS,
    NOT_REPORTED,
    STEPS_TOTALS,
    Rows,
    ends_known,
    joined,
    kinds_of,
    rows_of,
)


class StreamInbox:
    """What one stream sent, in order, while what its times mean did not change.

    `heartbeats` are hellos and heartbeats, each with the number of records before it. `overlapped`
    and `held_totals`: as in `RecordStretch`.
    """

    __slots__ = ("_count", "_parts", "_single", "heartbeats", "held_totals", "overlapped")

    def __init__(self, *, overlapped: bool, held_totals: bool = False) -> None:
        self.overlapped, self.held_totals = overlapped, held_totals
        self.heartbeats: list[tuple[int, Step]] = []
        self._parts: list[Rows] = []
        self._single: list[Step] = []
        self._count = 0

    def step(self, step: Step) -> None:
        """Add one record."""
        self._single.append(step)
        self._count += 1

    def steps(self, rows: Rows) -> None:
        """Add some records."""
        self._gather()
        self._parts.append(rows)
        self._count += len(rows)

    def heartbeat(self, message: Step) -> None:
        """Add a hello or heartbeat."""
        self.heartbeats.append((self._count, message))

    def rows(self, before: Rows) -> Rows:
        """Return the records, preceded by `before`."""
        self._gather()
        return joined([before, *self._parts])

    def _gather(self) -> None:
        if self._single:
            self._parts.append(rows_of(self._single))
            self._single = []


class Inbox:
    """Queued messages of many streams; `count` is their number."""

    def __init__(self) -> None:
        self.count = 0
        self._inboxes: dict[StreamKey, list[StreamInbox]] = {}

    def step(self, key: StreamKey, step: Step, *, overlapped: bool) -> None:
        """Add one record."""
        self._latest(key, overlapped=overlapped, held_totals=False).step(step)
        self.count += 1

    def steps(
        self, key: StreamKey, rows: Rows, *, overlapped: bool, held_totals: bool = False
    ) -> None:
        """Add some records of one stream, in the order of arrival."""
        if len(rows):
            self._latest(key, overlapped=overlapped, held_totals=held_totals).steps(rows)
            self.count += len(rows)

    def heartbeat(self, key: StreamKey, message: Step) -> None:
        """Add a hello or heartbeat."""
        several = self._inboxes.get(key)
        latest = several[-1] if several else self._latest(key, overlapped=False, held_totals=False)
        latest.heartbeat(message)
        self.count += 1

    def take(self) -> list[tuple[StreamKey, StreamInbox]]:
        """Return what has arrived, stream by stream, and clear the inbox."""
        received, self._inboxes, self.count = self._inboxes, {}, 0
        return [(key, inbox) for key, several in received.items() for inbox in several]

    def _latest(self, key: StreamKey, *, overlapped: bool, held_totals: bool) -> StreamInbox:
        several = self._inboxes.setdefault(key, [])
        last = several[-1] if several else None
        if last is None or (last.overlapped, last.held_totals) != (overlapped, held_totals):
            several.append(StreamInbox(overlapped=overlapped, held_totals=held_totals))
        return several[-1]


_Flags = NDArray[np.bool_]
_Numbers = NDArray[np.float64]


class RecordStretch(NamedTuple):
    """Consecutive records of one stream; the first row is the record before them.

    `length_ns` is the time that each stands for, 0 for the first. `overlapped`: the engine's own
    step times are mere waits, so the host's part in a step is not known. Its totals are the time
    that steps held their devices (`held_totals`), else the time from record to record counts.
    """

    rows: Rows
    length_ns: _Numbers
    overlapped: bool
    held_totals: bool = False


class BatchSums(NamedTuple):
    """Decode steps of one batch class in one stretch: their number and sums."""

    stretch: int
    number: int
    steps: float
    requests: float
    step_ns: float


class RecordColumns(NamedTuple):
    """Records of several stretches, one after the other, as columns.

    `first` is where each stretch begins. There, and where a record only describes the state between
    two steps, `reported` is false: it has no steps, batch or step time. `length_ns` is the time
    since the previous record, `step_ns` how long the steps took, `held_ns` how long they held the
    engine. `reads`: the steps prefilled; `writes`: they only decoded. `paired`: work was left
    before, and the host's gap is known. `waited`: requests waited before and after. `exact`: both
    ends of the step are known.
    """

    first: list[int]
    stretch: NDArray[np.int64]
    rows: Rows
    length_ns: _Numbers
    step_ns: _Numbers
    held_ns: _Numbers
    steps: _Numbers
    batch: _Numbers
    reported: _Flags
    reads: _Flags
    writes: _Flags
    paired: _Flags
    waited: _Flags
    exact: _Flags

    def tallies(self) -> list[LoadTally]:
        """Return the sums over each stretch."""
        length_ns, held_ns, steps = self.length_ns, self.held_ns, self.steps
        kv_usage = self.rows["kv_usage_ratio"]
        columns = {
            "length_ns": length_ns,
            "kv_ns": np.maximum(kv_usage, 0.0) * length_ns,
            "kv_unknown_ns": (kv_usage == NOT_REPORTED) * length_ns,
            "waiting_ns": self.waited * length_ns,
            "blocked_ns": (self.waited & self.writes) * length_ns,
            "batch_ns": self.batch * held_ns,
            "steps": steps,
            "decode_steps": (self.batch > 0) * steps,
            "decode_tokens": self.batch * steps,
            "decode_ns": self.writes * held_ns,
            "prefill_steps": self.reads * steps,
            "prefill_tokens": _masked(self.rows["context_tokens"], self.reads),
            "prefill_ns": self.reads * held_ns,
            "paired_steps": self.paired * steps,
            "paired_ns": self.paired * length_ns,
            "worked_ns": self.paired * self.step_ns,
            "preemptions": _masked(self.rows["preemptions"], self.reported),
        }
        sums = [np.add.reduceat(columns[name], self.first).tolist() for name in FIELDS]
        return [LoadTally(*each) for each in zip(*sums, strict=True)]

    def batches(self) -> Iterator[BatchSums]:
        """Yield the steps that only decoded."""
        selected = np.flatnonzero(self.writes & self.exact)
        if not len(selected):
            return
        batch, steps = self.batch[selected], self.steps[selected]
        classes = classes_of(batch)
        most = int(classes.max()) + 1
        cells = self.stretch[selected] * most + classes
        sums = [np.bincount(cells, each) for each in (steps, steps * batch, self.step_ns[selected])]
        found = np.flatnonzero(np.bincount(cells))
        for cell, *each in zip(found.tolist(), *(s[found].tolist() for s in sums), strict=True):
            yield BatchSums(*divmod(cell, most), *each)

    def worked(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield the indices of the records of steps that computed tokens, stretch by stretch."""
        selected = np.flatnonzero(self.reads | self.writes)
        if not len(selected):
            return
        bounds = np.searchsorted(selected, self.first[1:])
        for stretch, some in enumerate(np.split(selected, bounds)):
            if len(some):
                yield stretch, some


def work_of(stretches: Sequence[RecordStretch]) -> RecordColumns:
    """Return the columns of the records of one or more stretches."""
    counts = [len(stretch.rows) for stretch in stretches]
    rows = joined([stretch.rows for stretch in stretches])
    # Each row but the very first is compared with the one before it, which is meaningless where
    # another stretch begins.
    seams = [count - 1 for count in accumulate(counts[:-1])]
    numbers = np.repeat(np.arange(len(counts)), counts)[1:]
    length_ns = np.concatenate([stretch.length_ns for stretch in stretches])[1:]
    waiting = rows["waiting"] > 0
    pending = (waiting | (rows["running"] > 0))[:-1]
    every_kind = kinds_of(rows)
    newer, kinds = rows[1:], every_kind[1:]
    writes = kinds == wire.GENERATION
    # Transferred requests write their first token like any other (accounting A4).
    received = writes & (newer["context_tokens"] > 0)
    batch = newer["generation_requests"] + newer["context_requests"] * received
    reported = ~writes | (batch > 0)
    reported[seams] = False
    writes &= reported
    steps, step_ns = (reported * each for each in _growth(rows, kinds))
    held_ns = reported * np.where(pending, length_ns, np.minimum(step_ns, length_ns))
    paired = pending & reported
    if any(stretch.overlapped for stretch in stretches):
        overlapped = np.array([stretch.overlapped for stretch in stretches])[numbers]
        waits = [stretch.overlapped and not stretch.held_totals for stretch in stretches]
        step_ns = np.where(paired & np.array(waits)[numbers], length_ns, step_ns)
        paired &= ~overlapped
    return RecordColumns(
        first=[0, *seams],
        stretch=numbers,
        rows=newer,
        length_ns=length_ns,
        step_ns=step_ns,
        held_ns=held_ns,
        steps=steps,
        batch=_masked(batch, reported),
        reported=reported,
        reads=reported & ~writes & (kinds != wire.DUMMY_STEP),
        writes=writes,
        paired=paired,
        waited=waiting[:-1] & waiting[1:],
        exact=~np.array([stretch.held_totals for stretch in stretches])[numbers]
        | ends_known(rows, every_kind, [0, *(seam + 1 for seam in seams)])[1:],
    )


def _growth(rows: Rows, kinds: NDArray[np.int64]) -> tuple[_Numbers, _Numbers]:
    """Return the growth of the steps, and the time, of each row's kind over the previous row."""
    steps, step_ns = np.zeros(len(kinds)), np.zeros(len(kinds))
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        selected = kinds == kind
        for growth, name in ((steps, STEPS_TOTALS[kind]), (step_ns, ELAPSED_TOTALS[kind])):
            total = rows[name]
            np.subtract(total[1:], total[:-1], out=growth, where=selected)
    return steps, step_ns


def _masked(counts: NDArray[np.int64], selected: _Flags) -> _Numbers:
    """Return counts, with 0 where they do not count, as floats, whose sums cannot overflow."""
    return np.multiply(counts, selected, dtype=np.float64)
