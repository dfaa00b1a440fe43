"""Steps of a real vLLM on an H200: what our accounting and our cost model make of them."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import pytest
from bench.gpu_steps.watch import WatchedStep
from bench.real import recorded, shares
from bench.real.recorded import LOADS

from disagg_exporter.capacity.curves.curve import Curve
from disagg_exporter.capacity.curves.limits import find_knee
from disagg_exporter.capacity.node import CapacityModel
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import Facts
from disagg_exporter.inside_engine.disagg_steps.held import Held, next_held
from disagg_exporter.inside_engine.disagg_steps.stream import StepReport, Stream
from disagg_exporter.model import EngineState, EngineStatus, Role, StreamKey
from disagg_exporter.steps.messages import StepRecords, record_runs

# As vLLM's executor measured them: the time that looking takes, and that output takes.
_LOOK_US, _OUTPUT_US, _KERNEL_US, _IDLE_US = 30, 150, 300, 800


@cache
def steps() -> tuple[WatchedStep, ...]:
    return tuple(recorded.recorded())


def of(load: str) -> list[WatchedStep]:
    return [step for step in steps() if step.part == load]


def prompts_alone() -> list[WatchedStep]:
    return [
        step
        for step in steps()
        if step.part.startswith(recorded.SWEEP)
        and step.context_tokens
        and not step.context_past_tokens
        and not step.generation_requests
    ]


class Launched(NamedTuple):
    """A step of a pipeline: when it was reported, the wait before, and how long it really took."""

    step: WatchedStep
    record_us: float
    wait_us: float
    took_us: float


def launched_ahead(load: list[WatchedStep]) -> Iterator[Launched]:
    """Play the steps in an engine that launches each before it waits for the one before it.

    Launching takes what it took without async scheduling; the GPU begins when a step is launched
    and the one before has ended, and takes what it took then.
    """
    now = ended = 0.0
    last: tuple[WatchedStep, float, float] | None = None
    for step in load:
        launch = step.step_us - step.iteration_us
        begun = max(now + _KERNEL_US, ended)
        now += launch
        end = max(begun + step.step_us - _IDLE_US, now + _KERNEL_US)
        if last is not None:
            yield _reported(now, *last)
            now = max(now + _LOOK_US, last[1]) + _OUTPUT_US
        last = step, end, end - ended
        ended = end
    assert last is not None
    yield _reported(now, *last)


def _reported(now: float, step: WatchedStep, end: float, took: float) -> Launched:
    record = max(now + _LOOK_US, end)
    return Launched(step, record, record - now, took)


def prompts_us(told: list[Launched], *, ruled: bool) -> float:
    """Return the time of steps with prompts but the first, by our rules or between records."""
    known, before, total = Held(), 0.0, 0.0
    for number, each in enumerate(told):
        facts = Facts(
            elapsed_ns=round(each.wait_us * 1000),
            context_tokens=each.step.context_tokens,
            generation_tokens=each.step.generation_requests,
            running=each.step.running,
        )
        held_ns, known = next_held(
            known, round(each.record_us * 1000), facts, rested=not number, counted=True, late=True
        )
        if number and each.step.context_tokens:
            total += held_ns / 1000 if ruled else each.record_us - before
        before = each.record_us
    return total


@pytest.mark.parametrize("load", LOADS)
def test_steps_launched_ahead_are_held_for_as_long_as_they_took(load: str) -> None:
    told = list(launched_ahead(of(load)))
    true = sum(each.took_us for each in told[1:] if each.step.context_tokens)

    assert prompts_us(told, ruled=True) == pytest.approx(true, rel=0.01)
    if load.startswith("chat"):
        assert prompts_us(told, ruled=False) < 0.8 * true


def test_the_engines_own_figure_leaves_the_launch_out() -> None:
    chat = of("chat")
    mixed = [step for step in chat if step.context_tokens]
    decode = [step for step in chat if not step.context_tokens]

    for some, told in ((mixed, 0.37), (decode, 0.78)):
        ratio = sum(step.iteration_us for step in some) / sum(step.step_us for step in some)
        assert ratio == pytest.approx(told, abs=0.01)


def test_an_engine_waits_for_a_decode_step_unless_it_launches_a_prompt_next() -> None:
    """That distinguishes records that are late, in all steps of an engine that served users."""
    with gzip.open(recorded.DATA / "served.csv.gz", "rt") as lines:
        rows = list(csv.DictReader(lines))
    decode = [
        (float(one["elapsed_ms"]), one, int(after["context_tokens"]))
        for one, after in pairwise(rows)
        if one["context_tokens"] == "0"
    ]
    before_prompts = [waited for waited, _, prompt in decode if prompt]
    others = [waited for waited, _, prompt in decode if not prompt]

    assert len(before_prompts) > 300
    assert sum(waited < 0.2 for waited in before_prompts) / len(before_prompts) > 0.9
    assert sum(waited > 0.2 for waited in others) / len(others) > 0.95


def test_shares_of_real_steps_are_within_two_and_a_half_points() -> None:
    """One engine serves the loads in turn and is learned from as it goes."""
    scores = recorded.scores()

    assert len(scores) == len(LOADS) * len(shares.WAYS)
    for score in scores:
        assert abs(score.error) <= (2 if score.trusted else 2.5)
        assert abs(score.error) < abs(score.tokens_error)
        assert score.interference_error is None or abs(score.interference_error) <= 2


def test_the_knee_of_real_prompts_is_found() -> None:
    """Nine tenths of the best rate, 43,000 tokens a second, is reached at 1,024 tokens."""
    curve = Curve()
    for step in prompts_alone():
        curve.add(step.context_tokens, step.seconds, 1)

    knee = find_knee(curve.points(1))

    assert knee is not None
    assert knee.knee_tokens == pytest.approx(1024, rel=0.15)


def test_the_prefill_curve_of_an_engine_that_launches_ahead_is_that_of_its_steps() -> None:
    """Prompts of all sizes without a pause: small ones end before the next is launched."""
    dice = random.Random(1)
    load = dice.choices(prompts_alone(), k=1500)
    true = {
        size: size / median(step.seconds for step in load if step.context_tokens == size)
        for size in (256, 512, 1024, 2048, 4096)
    }

    told = prefill_curve(load, held_totals=True)
    between_records = prefill_curve(load, held_totals=False)

    assert all(told[size] == pytest.approx(true[size], rel=0.12) for size in true)
    assert between_records[256] < 0.85 * true[256]


def prefill_curve(load: list[WatchedStep], *, held_totals: bool) -> dict[float, float]:
    """Return tokens per second by tokens of a step, as learned from the plugin's records."""
    stream = Stream(1, 0, 1, wire.OVERLAPPED, lambda *told: StepReport(*told), late=True)
    packets = [stream.standing(wire.HELLO, 0)]
    for each in launched_ahead(load):
        tokens = each.step.context_tokens
        facts = Facts(round(each.wait_us * 1000), 1, tokens, computed_tokens=tokens, running=1)
        packets.append(stream.record(round(each.record_us * 1000), (facts, True)) or b"")
    key, model, now_ns = StreamKey("e", 1, 1, 0), CapacityModel(0.03), 0
    engine = EngineStatus(
        "e", Role.PREFILL, "vllm", "", "m", ("g",), EngineState.READY, True, "", ""
    )
    model.advance([engine], now_ns)
    for packet in packets:
        [run], _ = record_runs([packet])
        told = run.event(key)
        if isinstance(told, StepRecords):
            model.steps(key, told.rows, overlapped=True, held_totals=held_totals)
            while now_ns + 10**9 <= told.rows["t_ns"][-1]:
                now_ns += 10**9
                model.advance([engine], now_ns)
        elif told.step is not None:
            model.heartbeat(key, told.step)
    (capacity,) = model.capacities([engine])
    return {point.size: point.value for point in capacity.prefill_curve}
