"""The invariants of docs/accounting.md over random histories of a node."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import EngineState, Method, Phase, Role, Step, Use
from support.accounting import NodeAccounting, StepReporter, ns

EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("step"),
            st.sampled_from("abc"),
            st.floats(0, 20),
            st.integers(0, 50),
            st.integers(0, 5),
            st.integers(0, 2),
        ),
        st.tuples(st.just("beat"), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 4))),
        st.tuples(st.just("lose"), st.sampled_from("abc"), st.floats(0, 5)),
        st.tuples(
            st.just("state"),
            st.sampled_from("abc"),
            st.sampled_from(list(EngineState)),
            st.sampled_from([Role.PREFILL, Role.DECODE]),
            st.floats(0, 10),
        ),
        st.tuples(
            st.just("move"),
            st.sampled_from("abc"),
            st.sampled_from([[], ["g0"], ["g1"], ["g0", "g1"]]),
            st.floats(0, 10),
        ),
        st.tuples(st.just("read"), st.sampled_from(["g0", "g1"]), st.floats(0, 1)),
        st.tuples(
            st.just("use"),
            st.sampled_from("abc"),
            st.sampled_from([Method.STEPS, Method.PAGE, Method.PAGE_CPU, Method.ROLE]),
        ),
        st.tuples(
            st.just("window"),
            st.sampled_from("abc"),
            st.floats(0.1, 20),
            st.floats(0, 1),
            st.one_of(st.none(), st.floats(0, 20)),
            st.sampled_from([Method.PAGE, Method.PAGE_CPU, Method.ROLE]),
            st.integers(0, 2),
        ),
        st.tuples(st.just("wait"), st.floats(0.01, 12)),
        st.tuples(st.just("die"), st.floats(0, 40), st.sets(st.sampled_from([1, 2, 3]))),
    ),
    max_size=60,
)
WHERE: dict[str, list[str]] = {"a": ["g0"], "b": ["g0", "g1"], "c": ["g1"]}


def _play(events: list[tuple[Any, ...]], check: Any) -> NodeAccounting:
    """Play a history on two GPUs and three engines, one of which shares both; they may move."""
    accounting, now, where = NodeAccounting(gpus=2), 0.0, dict(WHERE)
    tellers = {name: StepReporter(name, pid=i + 1) for i, name in enumerate(WHERE)}
    for name in WHERE:
        accounting.engine(name, Role.MIXED, WHERE[name], pids=(tellers[name].key.pid,))
    for event in events:
        match event:
            case ("step", name, elapsed, context, generated, running):
                step = tellers[name].step(
                    now,
                    elapsed,
                    context_requests=min(context, 1),
                    context_tokens=context,
                    computed_tokens=context,
                    generation_requests=generated,
                    generation_tokens=generated,
                    running=running,
                )
                accounting.step(tellers[name], step, now)
            case ("beat", name, in_flight):
                accounting.beat(tellers[name], now, in_flight=in_flight)
            case ("lose", name, elapsed):
                tellers[name].decode(now, elapsed)
            case ("state", name, state, role, ago):
                accounting.engine(name, role, where[name], state, max(now - ago, 0))
            case ("move", name, gpus, ago):
                where[name] = gpus
                accounting.engine(name, Role.MIXED, gpus, since=max(now - ago, 0))
            case ("read", gpu, ratio):
                accounting.activity(max(now - 0.1, 0), now, ratio, gpu)
            case ("use", name, method):
                accounting.use(method, now, name)
            case ("window", name, length, share, busy, method, running):
                start = max(now - length, 0)
                told = {"running": running, "prefill_tokens": 5}
                accounting.window(start, now, share, busy, name, method, **told)
            case ("die", absent, left):
                written, now = now, now + absent
                accounting = accounting.successor(written, now, pids=left)
                check(accounting, now)
            case ("wait", seconds):
                now += seconds
                accounting.advance(now)
                check(accounting, now)
    return accounting


@given(EVENTS)
def test_every_device_is_accounted_for_to_its_watermark(events: list[tuple[Any, ...]]) -> None:
    """Invariant a: the uses of a device sum to weight × (watermark − start), whatever comes."""

    def check(accounting: NodeAccounting, now: float) -> None:
        assert accounting.unbalanced() == []
        assert all(accounting.watermark(gpu) <= now for gpu in accounting.gpus)

    _play(events, check)


@given(EVENTS)
def test_nothing_exported_ever_goes_down(events: list[tuple[Any, ...]]) -> None:
    """Invariant b: cells, watermarks, engine seconds, tokens and cuts only grow."""
    before: dict[Any, float] = {}

    def check(accounting: NodeAccounting, now: float) -> None:
        values: dict[Any, float] = {}
        for account in accounting.ledger.device_accounts():
            values["watermark", account.device.gpu] = account.watermark_ns
            for cell, seconds in account.cells.items():
                values[account.device.gpu, cell] = seconds
        for engine in accounting.ledger.engine_accounts(ns(now)):
            values["cut", engine.engine] = engine.cut_seconds
            for key, seconds in engine.gpu_seconds.items():
                values[engine.engine, key] = seconds
        for tokens in accounting.ledger.token_accounts():
            values["tokens", tokens.role, tokens.phase] = tokens.tokens
        for key, value in before.items():
            assert values.get(key, 0) >= value
        before.update(values)

    _play(events, check)


@given(EVENTS)
def test_engine_seconds_are_the_devices_busy_seconds(events: list[tuple[Any, ...]]) -> None:
    """Invariant d, the other way round: the seconds of engines are the busy seconds of devices."""

    def check(accounting: NodeAccounting, now: float) -> None:
        engines = sum(
            sum(engine.gpu_seconds.values())
            for engine in accounting.ledger.engine_accounts(ns(now))
        )
        devices = sum(
            seconds
            for account in accounting.ledger.device_accounts()
            for cell, seconds in account.cells.items()
            if cell.use in (Use.PREFILL, Use.DECODE)
        )
        assert abs(engines - devices) < 1e-6

    _play(events, check)


STEPS = st.lists(st.tuples(st.floats(0.001, 0.4), st.booleans()), min_size=1, max_size=14)


@given(STEPS, st.integers(0, 2**16), st.integers(0, 4))
def test_order_and_duplication_of_records_change_nothing(
    lengths: list[tuple[float, bool]], seed: int, copies: int
) -> None:
    """Invariant e: the same records in any order within the packing delay, some of them twice."""
    reporter, t = StepReporter(), 1.0
    steps: list[Step] = []
    for length, prefill in lengths:
        t += length
        make = reporter.prefill if prefill else reporter.decode
        steps.append(make(t, length * 0.9))
    shuffled = [*steps, *steps[:copies]]
    random.Random(seed).shuffle(shuffled)

    def settle(order: list[Step]) -> dict[Phase, float]:
        accounting = NodeAccounting()
        accounting.engine()
        accounting.beat(StepReporter(), 0)
        for step in order:
            accounting.step(reporter, step, now=t)
            accounting.advance(t)
        accounting.beat(reporter, t + 10)
        accounting.beat(reporter, t + 20)
        accounting.advance(t + 20)
        return accounting.engine_seconds(t + 20)

    assert settle(shuffled) == settle(steps)


@given(STEPS, st.sets(st.integers(0, 13)))
def test_lost_records_are_restored_by_phase_from_the_running_totals(
    lengths: list[tuple[float, bool]], lost: set[int]
) -> None:
    """Invariant e: running totals restore time and tokens by phase, exactly for pure steps."""
    reporter, t = StepReporter(), 1.0
    accounting = NodeAccounting()
    accounting.engine()
    accounting.beat(reporter, 0)
    expected = dict.fromkeys(Phase, 0.0)
    for number, (length, prefill) in enumerate(lengths):
        t += length
        step = (reporter.prefill if prefill else reporter.decode)(t, length * 0.9)
        expected[Phase.PREFILL if prefill else Phase.DECODE] += step.elapsed_ns / 1e9
        if number not in lost:
            accounting.step(reporter, step)
    accounting.beat(reporter, t + 1)
    for later in range(2, 40):
        accounting.beat(reporter, t + later)
        accounting.advance(t + later)

    assert accounting.engine_seconds(t + 39) == pytest.approx(expected, abs=1e-5)
