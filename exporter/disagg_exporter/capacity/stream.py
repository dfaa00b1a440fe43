"""One stream of step records: feeds its engine's curves and the load of the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.capacity.curves.curve import Curve
from disagg_exporter.capacity.curves.utilization import WINDOW_NS, LoadTally, LoadWindow
from disagg_exporter.capacity.work import (
    BatchSums,
    RecordColumns,
    RecordStretch,
    StreamInbox,
    work_of,
)
from disagg_exporter.model import Step
from disagg_exporter.steps.rows import NOT_REPORTED, ROW, Rows, joined, rows_of, unfinished_tokens

STEPS_A_SAMPLE = 4
"""Decode steps are averaged before they are a sample: records come in bursts."""
AT_ONCE = 500
"""About this many records are processed together: few enough for a processor's caches."""
_GAPS_KEPT = 64
# A mixed step costs about as much as a prefill step of all its tokens, if few of them decode.
_MOSTLY = 3


class StreamLoad:
    """What one process reports of one rank; all times are those that its messages carry.

    Records tile time: the stretch of a record reaches from the previous one to itself, and holds a
    step and the host's gap before it. A heartbeat ends a stretch only while no work is pending;
    otherwise a step is under way, and its record will describe the stretch.

    Args:
        prefill, decode: The engine's curves, which its ranks share; it `teaches` them.
    """

    __slots__ = (
        "_before",
        "_decode",
        "_gaps",
        "_pools",
        "_prefill",
        "_tally",
        "_unfinished",
        "mark_ns",
        "received_ns",
        "recorded_ns",
        "teaches",
        "window",
    )

    def __init__(self, prefill: Curve, decode: Curve) -> None:
        self.window = LoadWindow()
        self.mark_ns = 0
        self.received_ns = 0
        self.recorded_ns = 0
        self.teaches = True
        self._prefill = prefill
        self._decode = decode
        # The newest record, or the first heartbeat; empty before there is any.
        self._before: Rows = np.empty(0, ROW)
        self._unfinished = 0.0
        self._tally = LoadTally()
        self._gaps: deque[float] = deque(maxlen=_GAPS_KEPT)
        self._pools: dict[int, list[float]] = {}

    @property
    def gap_seconds(self) -> float | None:
        """Median host time from one step to the next while work is pending; None before any."""
        return median(self._gaps) if self._gaps else None

    def ingest(self, inbox: StreamInbox) -> list[RecordStretch]:
        """Add what was received; return the stretches to pass to `learn`.

        A record that is late or duplicate is ignored.
        """
        if not len(self._before):
            self._begin(inbox)
        rows, heartbeats = _fresh(inbox.rows(self._before), inbox.heartbeats)
        stretches, first = [], 0
        for last, heartbeat in heartbeats:
            if not (rows["running"][last] or rows["waiting"][last]):
                stretches.append(self._stretch_of(rows[first : last + 1], inbox))
                self._ingest_idle(heartbeat, float(rows["kv_usage_ratio"][last]))
                first = last
        stretches.append(self._stretch_of(rows[first:], inbox))
        if len(rows) > 1:
            self.received_ns = self.recorded_ns = int(rows["t_ns"][-1])
            self._before = joined([rows[-1:]])
        since = [heartbeat.t_ns for last, heartbeat in heartbeats if last == len(rows) - 1]
        self.received_ns = max([self.received_ns, *since])
        return [stretch for stretch in stretches if len(stretch.rows) > 1]

    def count(self, tally: LoadTally) -> None:
        """Add the sums over some records."""
        self._tally += tally

    def learn_batch(self, batch: BatchSums) -> None:
        """Learn from steps that only decoded."""
        if not self.teaches:
            return
        pool = self._pools.setdefault(batch.number, [0.0, 0.0, 0.0])
        pool[0] += batch.steps
        pool[1] += batch.requests
        pool[2] += batch.step_ns

    def learn_prompts(self, work: RecordColumns, places: NDArray[np.intp]) -> None:
        """Learn from steps that prefilled: `places` are the indices of records of all steps.

        A step that only decodes shows that no prompt is under way. So one that was aborted, and
        never ends, does not make all later prompts look cut off.
        """
        if not self.teaches:
            return
        reads = work.reads[places]
        if not reads.any():
            self._unfinished = 0.0
            return
        rows = work.rows
        context, generated = rows["context_tokens"][places], rows["generation_tokens"][places]
        left = unfinished_tokens(
            (context - rows["computed_tokens"][places]) * reads,
            ~reads | (rows["running"][places] <= 0),
            self._unfinished,
        )
        self._unfinished = float(left[-1])
        teaches = reads & (work.steps[places] == 1) & (rows["encoder_inputs"][places] == 0)
        teaches &= work.exact[places]
        teaches &= context >= _MOSTLY * generated
        # A prompt is cut before its end because the step can hold no more.
        columns = (context + generated, work.step_ns[places], rows["t_ns"][places], left > 0)
        for size, step_ns, t_ns, full in zip(*(c[teaches].tolist() for c in columns), strict=True):
            self._prefill.add(size, step_ns / 1e9, t_ns, full=full)

    def end_second(self, now_ns: int, *, is_shared: bool = False) -> None:
        """Move what was gathered into the window and the curves.

        If the rank `is_shared`, steps that other servers report lie between two records: that is no
        gap.
        """
        tally, self._tally = self._tally, LoadTally()
        if tally.length_ns:
            self.window.add(tally)
        if tally.paired_steps and not is_shared:
            gap_ns = max(tally.paired_ns - tally.worked_ns, 0.0)
            self._gaps.append(gap_ns / tally.paired_steps / 1e9)
        for number, (steps, requests, spent_ns) in list(self._pools.items()):
            if steps >= STEPS_A_SAMPLE:
                self._decode.add(requests / steps, spent_ns / steps / 1e9, now_ns)
                del self._pools[number]

    def _begin(self, inbox: StreamInbox) -> None:
        """Use the first message as the baseline: its totals include earlier steps."""
        if inbox.heartbeats and not inbox.heartbeats[0][0]:
            self._before = rows_of([inbox.heartbeats[0][1]])
        else:
            self._before = joined([inbox.rows(self._before)[:1]])
            self.received_ns = self.recorded_ns = int(self._before["t_ns"][0])
        self.mark_ns = max(int(self._before["t_ns"][0]), 0)

    def _ingest_idle(self, heartbeat: Step, kv_usage_ratio: float) -> None:
        """Add a heartbeat that arrived while the engine is idle."""
        length_ns = heartbeat.t_ns - self.mark_ns
        if length_ns > 0:
            self.mark_ns = heartbeat.t_ns
            self._tally.length_ns += length_ns
            if kv_usage_ratio == NOT_REPORTED:
                self._tally.kv_unknown_ns += length_ns
            else:
                self._tally.kv_ns += kv_usage_ratio * length_ns

    def _stretch_of(self, rows: Rows, inbox: StreamInbox) -> RecordStretch:
        """Return how much time each record stands for; the first row is the record before them."""
        # A heartbeat may have overtaken a record, which stands for no time then.
        reached_ns = np.maximum(rows["t_ns"], 0)
        reached_ns[0] = self.mark_ns
        reached_ns = np.maximum.accumulate(reached_ns)
        self.mark_ns = int(reached_ns[-1])
        length_ns = np.zeros(len(rows))
        length_ns[1:] = reached_ns[1:] - reached_ns[:-1]
        return RecordStretch(rows, length_ns, inbox.overlapped, inbox.held_totals)


_COUNTS = (
    *("prefill_tokens", "prefill_steps", "decode_tokens", "decode_steps", "steps"),
    "preemptions",
)


def with_other_servers(latest: StreamLoad, others: Sequence[StreamLoad]) -> LoadTally:
    """Return the last minute of a rank of which each of several servers reports a part.

    Time and state are those of the `latest`. Counts are of all of them; of a server that has
    reported no step for a while, the part of its last minute that is still in that of the latest.
    """
    total = latest.window.total
    if not others or not total.length_ns:
        return total
    more = dict.fromkeys(_COUNTS, 0.0)
    for other in others:
        part = other.window.total
        left = max(1 - max(latest.mark_ns - other.mark_ns, 0) / WINDOW_NS, 0.0)
        if part.length_ns:
            for name in _COUNTS:
                more[name] += getattr(part, name) * left * total.length_ns / part.length_ns
    # From one record of a server to its next there are steps of others.
    counts = {name: getattr(total, name) + count for name, count in more.items()}
    return replace(total, **counts, paired_ns=0.0, worked_ns=0.0, paired_steps=0.0)


def learn(reported: Iterable[tuple[StreamLoad, RecordStretch]]) -> None:
    """Learn from what streams have reported: many together take no longer than one."""
    some: list[tuple[StreamLoad, RecordStretch]] = []
    rows = 0
    for stream, stretch in reported:
        some.append((stream, stretch))
        rows += len(stretch.rows)
        if rows >= AT_ONCE:
            _learn(some)
            some, rows = [], 0
    if some:
        _learn(some)


def _learn(reported: Sequence[tuple[StreamLoad, RecordStretch]]) -> None:
    streams = [stream for stream, _ in reported]
    work = work_of([stretch for _, stretch in reported])
    for stream, tally in zip(streams, work.tallies(), strict=True):
        stream.count(tally)
    for batch in work.batches():
        streams[batch.stretch].learn_batch(batch)
    for number, places in work.worked():
        streams[number].learn_prompts(work, places)


def _fresh(
    rows: Rows, heartbeats: Sequence[tuple[int, Step]]
) -> tuple[Rows, Sequence[tuple[int, Step]]]:
    """Return the records newer than all before them, and the heartbeats' positions among them.

    The first row is the newest record known before. A heartbeat is at the last row before it.
    """
    sequence = rows["sequence"]
    if (sequence[1:] > sequence[:-1]).all():
        return rows, heartbeats  # the usual case
    fresh = np.ones(len(rows), np.bool_)
    fresh[1:] = sequence[1:] > np.maximum.accumulate(sequence)[:-1]
    places = np.cumsum(fresh) - 1
    return rows[fresh], [(int(places[last]), heartbeat) for last, heartbeat in heartbeats]
