"""A stream that processes records one by one: a slow and simple reference.

`disagg_exporter.capacity.stream` processes many streams at once; tests compare it with this.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from disagg_exporter.capacity.curves.curve import Curve, class_of
from disagg_exporter.capacity.curves.utilization import LoadTally, LoadWindow
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step
from disagg_exporter.steps.rows import kind_of

STEPS_A_SAMPLE = 4
"""Decode steps are averaged into samples, as records arrive in bursts."""
_GAPS_KEPT = 64
# A mixed step costs about what a prefill step of all its tokens costs, if few of them decode.
_MOSTLY = 3


class PlainStream:
    """The records of one rank from one process; all times are those in its messages.

    Records tile time: the stretch of a record reaches from the previous one to itself, and holds a
    step and the host's gap before it. A heartbeat ends a stretch only while no work is pending;
    otherwise a step is under way, whose record will account for the stretch.

    Args:
        prefill, decode: The engine's curves, which its ranks share.
    """

    __slots__ = (
        "_before",
        "_decode",
        "_gaps",
        "_groups",
        "_pools",
        "_prefill",
        "_tally",
        "_unfinished",
        "mark_ns",
        "received_ns",
        "recorded_ns",
        "window",
    )

    def __init__(self, prefill: Curve, decode: Curve) -> None:
        self.window = LoadWindow()
        self.mark_ns = 0
        self.received_ns = 0
        self.recorded_ns = 0
        self._prefill = prefill
        self._decode = decode
        self._before: Step | None = None
        self._unfinished = 0
        self._tally = LoadTally()
        self._gaps: deque[float] = deque(maxlen=_GAPS_KEPT)
        self._groups: dict[int, list[int]] = {}
        self._pools: dict[int, list[int]] = {}

    @property
    def gap_seconds(self) -> float | None:
        """The usual host time between steps while work is pending; None before any."""
        return median(self._gaps) if self._gaps else None

    @property
    def working(self) -> bool:
        """Whether the last record left work pending."""
        return self._before is not None and bool(self._before.running or self._before.waiting)

    def beat(self, step: Step) -> None:
        """Ingest a hello or heartbeat."""
        self.received_ns = max(self.received_ns, step.t_ns)
        if self._before is None:
            self._before, self.mark_ns = step, step.t_ns
        elif step.t_ns > self.mark_ns and not self.working:
            length_ns = step.t_ns - self.mark_ns
            self.mark_ns = step.t_ns
            self._tally.length_ns += length_ns
            self._tally.kv_ns += self._before.kv_usage_ratio * length_ns

    def take(self, step: Step, *, overlapped: bool) -> None:
        """Ingest one record; one that arrived too late, or twice, is ignored."""
        before = self._before
        if before is None:
            self._before = step
            self.mark_ns = self.received_ns = self.recorded_ns = step.t_ns
            return
        if step.sequence <= before.sequence:
            return
        # A heartbeat may have overtaken it.
        length_ns = max(step.t_ns - self.mark_ns, 0)
        pending = before.running or before.waiting
        self._before = step
        self.mark_ns += length_ns
        self.received_ns = self.recorded_ns = step.t_ns
        tally = self._tally
        tally.length_ns += length_ns
        tally.kv_ns += step.kv_usage_ratio * length_ns
        if before.waiting and step.waiting:
            tally.waiting_ns += length_ns
        batch = step.generation_requests
        if step.context_tokens or step.encoder_inputs or step.dummy:
            kind = kind_of(step)
            if kind == wire.GENERATION:
                batch += step.context_requests
        elif batch:
            kind = wire.GENERATION
        else:
            # Between two steps only the state is reported.
            return
        totals, earlier = step.totals, before.totals
        steps = totals.steps[kind] - earlier.steps[kind]
        step_ns = totals.elapsed_ns[kind] - earlier.elapsed_ns[kind]
        if pending and not overlapped:
            tally.paired_ns += length_ns
            tally.worked_ns += step_ns
            tally.paired_steps += steps
        if pending:
            held_ns = length_ns
            if overlapped:
                step_ns = length_ns
        else:
            held_ns = min(step_ns, length_ns)
        tally.batch_ns += batch * held_ns
        tally.steps += steps
        if batch:
            tally.decode_steps += steps
            tally.decode_tokens += batch * steps
        if kind == wire.GENERATION:
            self._unfinished = 0
            tally.decode_ns += held_ns
            if before.waiting and step.waiting:
                tally.blocked_ns += length_ns
            group = self._groups.get(batch)
            if group is None:
                self._groups[batch] = [steps, step_ns]
            else:
                group[0] += steps
                group[1] += step_ns
        elif kind != wire.DUMMY_STEP:
            tally.prefill_ns += held_ns
            tally.prefill_steps += steps
            tally.prefill_tokens += step.context_tokens
            self._learn_prefill(step, step_ns, steps)
        tally.preemptions += step.preemptions

    def end_second(self, now_ns: int) -> None:
        """Add the gathered samples to the window and the curves."""
        tally, self._tally = self._tally, LoadTally()
        if tally.length_ns:
            self.window.add(tally)
        if tally.paired_steps:
            gap_ns = max(tally.paired_ns - tally.worked_ns, 0.0)
            self._gaps.append(gap_ns / tally.paired_steps / 1e9)
        for batch, (steps, spent_ns) in self._groups.items():
            pool = self._pools.setdefault(class_of(batch), [0, 0, 0])
            pool[0] += steps
            pool[1] += steps * batch
            pool[2] += spent_ns
        self._groups.clear()
        for number, (steps, requests, spent_ns) in list(self._pools.items()):
            if steps >= STEPS_A_SAMPLE:
                self._decode.add(requests / steps, spent_ns / steps / 1e9, now_ns)
                del self._pools[number]

    def _learn_prefill(self, step: Step, step_ns: int, steps: int) -> None:
        left = self._unfinished + step.context_tokens - step.computed_tokens
        self._unfinished = max(left, 0) if step.running else 0
        if (
            steps != 1
            or step.encoder_inputs
            or step.context_tokens < _MOSTLY * step.generation_tokens
        ):
            return
        # A prompt is cut before its end only if the step can hold no more.
        full = self._unfinished > 0
        size = step.context_tokens + step.generation_tokens
        self._prefill.add(size, step_ns / 1e9, step.t_ns, full=full)
