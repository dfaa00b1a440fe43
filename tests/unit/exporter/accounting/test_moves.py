"""Engines whose devices change: no second on their former devices is lost (accounting A2)."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import SLICE_NS_PER_GPU_SECOND, EngineState, Method, Phase, Role, Use
from support.accounting import NodeAccounting, StepReporter


def test_tokens_from_before_a_role_change_stay_with_the_former_role() -> None:
    """Like the seconds, on any timeline: tokens from before 10 s are decode's."""
    for by_window in (False, True):
        accounting, reporter = NodeAccounting(), StepReporter()
        accounting.engine(role=Role.DECODE, model="old")
        accounting.use(Method.PAGE_CPU if by_window else Method.STEPS, 0)
        accounting.beat(reporter, 0)
        for t in (8, 9, 11, 12):
            if t == 11:
                accounting.engine(role=Role.PREFILL, since=10, model="new")
            if by_window:
                told = {"prefill_tokens": 100}
                accounting.window(t - 1, t, busy=0.5, method=Method.PAGE_CPU, **told)
            else:
                accounting.step(reporter, reporter.prefill(t, 0.5))
        accounting.beat(reporter, 30)
        accounting.advance(30)

        tokens = {
            (a.role, a.model_name): a.tokens
            for a in accounting.ledger.token_accounts()
            if a.phase is Phase.PREFILL
        }
        assert tokens == {(Role.DECODE, "old"): 200, (Role.PREFILL, "new"): 200}


def test_the_time_of_tokens_from_before_a_reload_stays_with_the_former_model() -> None:
    """The new process is there before the last seconds of the old one are committed."""
    accounting, old, new = NodeAccounting(), StepReporter(pid=1), StepReporter(pid=2)
    accounting.engine(role=Role.DECODE, model="old")
    accounting.beat(old, 0)
    for t in range(1, 11):
        accounting.step(old, old.decode(t, 0.5))
    accounting.engine(role=Role.DECODE, model="old", state=EngineState.GONE, since=10)
    accounting.engine(role=Role.DECODE, model="new", since=10)
    accounting.step(new, new.decode(12, 1))
    accounting.beat(new, 30)
    accounting.advance(30)

    accounts = accounting.ledger.token_accounts()
    decoded = {a.model_name: (a.tokens, a.slice_ns) for a in accounts if a.phase is Phase.DECODE}
    second = SLICE_NS_PER_GPU_SECOND
    assert decoded == {"old": (10, 5 * second), "new": (1, second)}


RELOADS = st.lists(
    st.tuples(
        st.floats(0.01, 4), st.sampled_from("mn"), st.sampled_from([Role.PREFILL, Role.DECODE])
    ),
    max_size=30,
)


@given(RELOADS)
def test_the_time_of_a_models_tokens_is_the_busy_time_of_its_devices(
    reloads: list[tuple[float, str, Role]],
) -> None:
    """Of an engine that changes its model and role at any time, and reports tokens each step."""
    accounting, reporter, t = NodeAccounting(), StepReporter(), 20.0
    accounting.engine(role=Role.DECODE)
    # Time counts once any token is known.
    accounting.step(reporter, reporter.decode(1, 0))
    accounting.beat(reporter, t)
    accounting.advance(t)
    for length, model, role in reloads:
        accounting.engine(role=role, model=model, since=t)
        t += length
        accounting.step(reporter, reporter.decode(t, length))
        accounting.advance(t)
    for later in range(1, 20):
        accounting.beat(reporter, t + later)
        accounting.advance(t + later)

    token_time, busy_time = Counter[str](), Counter[str]()
    for account in accounting.ledger.token_accounts():
        token_time[account.model_name] += account.slice_ns
    for device in accounting.ledger.device_accounts():
        for cell, slice_ns in device.slice_ns.items():
            busy_time[cell.model_name] += slice_ns if cell.use is Use.DECODE else 0
    assert token_time == busy_time


def test_steps_from_before_a_move_are_accounted_to_the_former_device() -> None:
    """A second of decode every two, reported as it ends; the engine moves at 10 s."""
    accounting, reporter = NodeAccounting(gpus=2), StepReporter()
    accounting.engine(role=Role.DECODE, gpus=["g0"])
    accounting.beat(reporter, 0)
    for t in range(2, 21, 2):
        if t == 12:
            accounting.engine(role=Role.DECODE, gpus=["g1"], since=10)
        accounting.step(reporter, reporter.decode(t, 1))
        accounting.advance(t)
    accounting.beat(reporter, 30)
    accounting.advance(30)

    assert accounting.seconds("g0")["decode"] == 5
    assert accounting.seconds("g1")["decode"] == 5
    assert accounting.engine_seconds(30)[Phase.DECODE] == 10
    assert accounting.unbalanced() == []


def test_a_step_during_a_move_is_split_between_both_devices() -> None:
    """A prefill from 7 to 15 s; the engine is given another device at 10 s, and keeps none."""
    accounting, reporter = NodeAccounting(gpus=2), StepReporter()
    accounting.engine(role=Role.PREFILL, gpus=["g0"])
    accounting.beat(reporter, 0)
    accounting.step(reporter, reporter.prefill(7, 1, running=1))
    accounting.engine(role=Role.PREFILL, gpus=["g1"], since=10)
    for t in range(10, 15):
        accounting.beat(reporter, t)
        accounting.advance(t)
    accounting.step(reporter, reporter.prefill(15, 8))
    accounting.beat(reporter, 30)
    accounting.advance(30)

    assert accounting.by_role(Role.PREFILL, "g0")["prefill"] == 1 + 3
    assert accounting.seconds("g1")["prefill"] == 5


def test_a_device_waits_for_an_engine_that_left_only_until_its_steps_are_known() -> None:
    """Once all that the engine did there is known, the device's accounting goes on without it."""
    accounting, reporter = NodeAccounting(gpus=2), StepReporter()
    accounting.engine(role=Role.DECODE, gpus=["g0"])
    accounting.step(reporter, reporter.decode(5, 1, running=1))
    accounting.engine(role=Role.DECODE, gpus=["g1"], since=10)
    accounting.advance(20)
    assert accounting.watermark("g0") == 0

    accounting.step(reporter, reporter.decode(20, 1, running=1))
    accounting.advance(20)

    assert accounting.watermark("g0") == 14
    assert accounting.watermark("g1") == 14


def test_an_engine_restarted_on_another_device_keeps_its_last_seconds_on_the_first() -> None:
    """The seconds before its exit stay, whatever devices its next process has."""
    accounting, first = NodeAccounting(gpus=2), StepReporter(pid=1)
    accounting.engine(role=Role.DECODE, gpus=["g0"])
    accounting.beat(first, 0)
    accounting.step(first, first.decode(10, 4))
    accounting.engine(role=Role.DECODE, gpus=["g0"], state=EngineState.GONE, since=11)
    accounting.engine(role=Role.DECODE, gpus=["g1"], state=EngineState.STARTING, since=11)
    accounting.advance(12)

    assert accounting.seconds("g0")["decode"] == 4


def test_a_device_moved_to_another_engine_is_accounted_to_it_from_then_on() -> None:
    """A decode engine grows by the device that a prefill engine gives up at 10 s."""
    accounting = NodeAccounting(gpus=2)
    prefill, decode = StepReporter("p", pid=1), StepReporter("d", pid=2)
    accounting.engine("p", Role.PREFILL, ["g0", "g1"])
    accounting.engine("d", Role.DECODE, [])
    for reporter in (prefill, decode):
        accounting.beat(reporter, 0)
    for t in range(1, 21):
        if t == 11:
            accounting.engine("p", Role.PREFILL, ["g0"], since=10)
            accounting.engine("d", Role.DECODE, ["g1"], since=10)
        accounting.step(prefill, prefill.prefill(t, 1))
        accounting.step(decode, decode.decode(t, 1))
        accounting.advance(t)
    for reporter in (prefill, decode):
        accounting.beat(reporter, 26)
    accounting.advance(26)

    assert accounting.seconds("g0") == {"prefill": 20}
    assert accounting.seconds("g1") == {"prefill": 10, "decode": 10}
    assert accounting.unbalanced() == []


MOVES = st.lists(
    st.tuples(st.floats(0.01, 0.4), st.sampled_from(["g0", "g1", "both", "stay"])), max_size=40
)


@given(MOVES)
def test_moves_change_on_which_device_time_is_accounted_and_never_how_much(
    moves: list[tuple[float, str]],
) -> None:
    """A device's worth of decode a step is on one device or on two, and on none is it twice."""
    accounting, reporter, t = NodeAccounting(gpus=2), StepReporter(), 1.0
    width, expected = 1, 0.0
    accounting.engine(gpus=["g0"])
    accounting.beat(reporter, 0)
    for length, where in moves:
        if where != "stay":
            gpus = ["g0", "g1"] if where == "both" else [where]
            accounting.engine(gpus=gpus, since=t)
            width = len(gpus)
        t += length
        step = reporter.decode(t, length)
        accounting.step(reporter, step)
        expected += width * step.elapsed_ns / 1e9
        accounting.advance(t)
    for later in range(1, 20):
        accounting.beat(reporter, t + later)
        accounting.advance(t + later)

    seconds = accounting.engine_seconds(t + 19)
    assert seconds[Phase.DECODE] == pytest.approx(expected, abs=1e-6)
    assert accounting.unbalanced() == []


def test_forgotten_engines_leave_no_memory_behind() -> None:
    """Pods have ever new names; each of these owes step time when it goes."""
    accounting, now, sizes = NodeAccounting(gpus=2), 0.0, {}
    for number in range(1, 61):
        name = f"pod-{number:03}"
        reporter = StepReporter(name, pid=number)
        accounting.engine(name, Role.DECODE, ["g0"], since=now)
        accounting.beat(reporter, now)
        for _ in range(15):
            now += 1
            accounting.step(reporter, reporter.decode(now, 1.5, running=1))
            accounting.advance(now)
        accounting.engine(name, Role.DECODE, ["g0"], EngineState.GONE, now)
        accounting.advance(now)
        accounting.ledger.forget(name)
        if number in (20, 60):
            sizes[number] = len(pickle.dumps(accounting.ledger))

    assert sizes[60] < sizes[20] * 1.1


@pytest.mark.parametrize("method", [Method.STEPS, Method.ENGINE_TIMERS])
def test_an_engine_with_unknown_devices_takes_no_growing_memory(method: Method) -> None:
    """No device ever reads its timeline, so there is nothing to keep it for."""
    accounting, reporter = NodeAccounting(), StepReporter()
    accounting.engine(gpus=[])
    accounting.use(method, 0)
    sizes = {}
    for t in range(1, 401):
        accounting.step(reporter, reporter.decode(t, 0.5))
        accounting.window(t - 1, t, t % 2, busy=0.5, method=method)
        accounting.advance(t)
        if t in (100, 400):
            sizes[t] = len(pickle.dumps(accounting.ledger))

    assert sizes[400] < sizes[100] * 1.1
