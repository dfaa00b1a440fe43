"""Steps of a real vLLM on an H200 whose lengths the GPU itself says: what we make of their records.

`timed.csv.gz` and, of another GPU, `tuned.csv.gz` have each step's length by CUDA events and vLLM's
wait for it. When its record was made is not in them, but follows from the waits: a wait begins when
the next step is launched, and that begins with the record before, so the record of step n was made
before the wait for n + 1 by as long as launching takes (without async scheduling, n + 1 itself is
launched in between).
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import pytest
from bench.real import recorded

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import Facts
from disagg_exporter.inside_engine.disagg_steps.held import Held, next_held
from disagg_exporter.inside_engine.disagg_steps.stream import StepReport, Stream
from disagg_exporter.model import StreamKey
from disagg_exporter.steps.messages import record_runs

LOADS = ("chat", "documents", "writing")
MODES = ("async", "sync")
KEY = StreamKey("e", 1, 1, 0)
_REST_US = 15_000
_WAITED_US = 200


class Timed(NamedTuple):
    """A step in microseconds: when the GPU reached it and left it, and vLLM's wait for its end."""

    begun: int
    ended: int
    wait: int
    context_requests: int
    context_tokens: int
    past_tokens: int
    generation_requests: int
    kv_tokens: int

    @property
    def kind(self) -> str:
        if not self.context_tokens:
            return "generation"
        return "mixed" if self.generation_requests else "context"


@cache
def timed(load: str) -> list[Timed]:
    found = []
    for name in ("timed", "tuned"):
        with gzip.open(recorded.DATA / f"{name}.csv.gz", "rt") as lines:
            rows = csv.reader(lines)
            next(rows)
            for part, t_us, step_us, *more in rows:
                if part == load:
                    found.append(Timed(int(t_us), int(t_us) + int(step_us), *map(int, more)))
    return found


class Told(NamedTuple):
    """A step, when its record was made, and whether the engine rested before."""

    step: Timed
    record_us: float
    rested: bool


def told(load: str) -> list[Told]:
    steps = timed(load)
    ahead = 2 if load.endswith("-async") else 1
    rested = [True, *(b.begun - a.ended > _REST_US for a, b in pairwise(steps))]
    plain = [
        b.ended - b.wait - a.ended
        for a, b, c in zip(steps, steps[1:], steps[2:], strict=False)
        if a.kind == b.kind == c.kind == "generation" and b.wait > _WAITED_US
    ]
    launch, found, made = median(plain), [], 0.0
    for number, step in enumerate(steps):
        made = max(made, step.ended)
        after, last = number + 1, number + ahead
        if last < len(steps) and not any(rested[after : last + 1]):
            launched_late = steps[after].wait > _WAITED_US and not steps[last].context_tokens
            if launched_late:
                made = max(made, steps[after].ended - steps[after].wait - launch)
        found.append(Told(step, made, rested[number]))
    return found


def facts_of(step: Timed) -> Facts:
    return Facts(
        elapsed_ns=step.wait * 1000,
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        computed_tokens=step.context_tokens,
        generation_requests=step.generation_requests,
        generation_tokens=step.generation_requests,
        running=1,
        kv_usage_ratio=(step.kv_tokens + step.past_tokens) / recorded.CACHE_TOKENS,
    )


def held_us(load: str) -> list[float]:
    known, found = Held(), []
    for step, record_us, rested in told(load):
        prompt_ns = (step.ended - step.begun) * 1000 if rested and step.context_tokens else 0
        held_ns, known = next_held(
            known,
            round(record_us * 1000),
            facts_of(step),
            rested=rested,
            counted=True,
            late=load.endswith("-async"),
            prompt_ns=prompt_ns,
        )
        found.append(held_ns / 1000)
    return found


def true_us(load: str) -> list[int]:
    """Return for how long each held the GPU: from the end of the one before, if it goes on."""
    steps = timed(load)
    ends = [steps[0].begun, *(step.ended for step in steps)]
    rested = [each.rested for each in told(load)]
    return [
        step.ended - (step.begun if rest else end)
        for step, end, rest in zip(steps, ends, rested, strict=False)
    ]


@pytest.mark.parametrize(
    "load",
    [
        *(f"{load}-{mode}" for load in LOADS for mode in MODES),
        "chat-again-async",
        "documents-again-async",
    ],
)
def test_each_phase_is_accounted_as_the_gpu_says(load: str) -> None:
    """Within 1.2 points of all step time, and the sum within a part in a hundred."""
    held, true = held_us(load), true_us(load)
    prompts = [bool(step.context_tokens) for step in timed(load)]

    def share(lengths: list[float]) -> float:
        return sum(length for length, one in zip(lengths, prompts, strict=True) if one) / sum(true)

    assert sum(held) == pytest.approx(sum(true), rel=0.01)
    assert share(held) == pytest.approx(share([float(each) for each in true]), abs=0.012)


def test_most_short_prompts_are_not_waited_for_and_their_lengths_are_not_known() -> None:
    writing = timed("writing-async")
    mixed = [(b, c) for b, c in pairwise(writing) if b.kind == "mixed"]

    assert sum(step.wait < _WAITED_US for step, _ in mixed) / len(mixed) > 0.6


def learned_from(*loads: str) -> StepSplit:
    """Let the accounting learn from the records of one engine that serves loads in turn."""
    split = StepSplit()
    timeline = StepTimeline(0, Rules(), split)
    stream = Stream(1, 0, 1, wire.OVERLAPPED, lambda *report: StepReport(*report), late=True)
    packets, offset_ns = [stream.standing(wire.HELLO, 0)], 10**9
    for load in loads:
        records = told(load)
        rests = [*(each.rested for each in records[1:]), True]
        for (step, record_us, _), rest in zip(records, rests, strict=True):
            t_ns = offset_ns + round(record_us * 1000)
            facts = facts_of(step)._replace(running=0 if rest else 1)
            packets.append(stream.record(t_ns, (facts, True)) or b"")
        offset_ns = t_ns + 1_000_000
    runs, bad = record_runs(packets)
    assert not bad
    for run in runs:
        if run.step is not None:
            timeline.heartbeat(KEY, run.step, overlapped=True, held_totals=True, now_ns=offset_ns)
        if run.rows is not None:
            timeline.add(KEY, run.rows, now_ns=offset_ns)
    timeline.end(offset_ns)
    return split


def test_costs_are_learned_though_the_lengths_of_many_steps_are_not_known() -> None:
    state = learned_from("chat-async", "documents-async", "writing-async").state

    assert state.trusted
    assert state.residual_ratio is not None
    assert state.residual_ratio < 0.15
    prices = {step.point: step.seconds for step in state.reference_steps}
    assert prices["decode_1"] == pytest.approx(0.0053, rel=0.1)
    assert prices["decode_16"] == pytest.approx(0.0060, rel=0.1)
    assert prices["prefill_1024"] == pytest.approx(0.0240, rel=0.15)
