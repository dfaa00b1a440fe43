"""Engines whose devices change under them: no second is lost where they were (accounting A2)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.model import EngineState, Method, Phase, Role
from support.books import Books, Teller


def test_tokens_from_before_a_change_of_role_stay_with_the_role_they_had() -> None:
    """Like the seconds, and whichever lane told them: what was done before 10 s was decode's."""
    for by_window in (False, True):
        books, teller = Books(), Teller()
        books.engine(role=Role.DECODE, model="old")
        books.use(Method.PAGE_CPU if by_window else Method.STEPS, 0)
        books.beat(teller, 0)
        for t in (8, 9, 11, 12):
            if t == 11:
                books.engine(role=Role.PREFILL, since=10, model="new")
            if by_window:
                told = {"prefill_tokens": 100}
                books.window(t - 1, t, busy=0.5, method=Method.PAGE_CPU, **told)
            else:
                books.step(teller, teller.prefill(t, 0.5))
        books.beat(teller, 30)
        books.advance(30)

        tokens = {
            (a.role, a.model_name): a.tokens
            for a in books.ledger.token_accounts()
            if a.phase is Phase.PREFILL
        }
        assert tokens == {(Role.DECODE, "old"): 200, (Role.PREFILL, "new"): 200}


def test_steps_from_before_a_move_are_booked_where_they_ran() -> None:
    """A second of decode every two, reported as it ends; the engine moves at 10 s."""
    books, teller = Books(gpus=2), Teller()
    books.engine(role=Role.DECODE, gpus=["g0"])
    books.beat(teller, 0)
    for t in range(2, 21, 2):
        if t == 12:
            books.engine(role=Role.DECODE, gpus=["g1"], since=10)
        books.step(teller, teller.decode(t, 1))
        books.advance(t)
    books.beat(teller, 30)
    books.advance(30)

    assert books.seconds("g0")["decode"] == 5
    assert books.seconds("g1")["decode"] == 5
    assert books.engine_seconds(30)[Phase.DECODE] == 10
    assert books.unbalanced() == []


def test_a_step_during_a_move_is_booked_on_both_sides_of_it() -> None:
    """A prefill from 7 to 15 s; the engine is given another device at 10 s, and keeps none."""
    books, teller = Books(gpus=2), Teller()
    books.engine(role=Role.PREFILL, gpus=["g0"])
    books.beat(teller, 0)
    books.step(teller, teller.prefill(7, 1, running=1))
    books.engine(role=Role.PREFILL, gpus=["g1"], since=10)
    for t in range(10, 15):
        books.beat(teller, t)
        books.advance(t)
    books.step(teller, teller.prefill(15, 8))
    books.beat(teller, 30)
    books.advance(30)

    assert books.by_role(Role.PREFILL, "g0")["prefill"] == 1 + 3
    assert books.seconds("g1")["prefill"] == 5


def test_a_device_that_an_engine_left_waits_for_it_no_longer_than_it_must() -> None:
    """Once all that the engine did there is known, the books of the device go on without it."""
    books, teller = Books(gpus=2), Teller()
    books.engine(role=Role.DECODE, gpus=["g0"])
    books.step(teller, teller.decode(5, 1, running=1))
    books.engine(role=Role.DECODE, gpus=["g1"], since=10)
    books.advance(20)
    assert books.watermark("g0") == 0

    books.step(teller, teller.decode(20, 1, running=1))
    books.advance(20)

    assert books.watermark("g0") == 14
    assert books.watermark("g1") == 14


def test_an_engine_that_dies_and_is_elsewhere_before_the_next_look() -> None:
    """Its last second before the death is its own, whatever devices its next process has."""
    books, first = Books(gpus=2), Teller(pid=1)
    books.engine(role=Role.DECODE, gpus=["g0"])
    books.beat(first, 0)
    books.step(first, first.decode(10, 4))
    books.engine(role=Role.DECODE, gpus=["g0"], state=EngineState.GONE, since=11)
    books.engine(role=Role.DECODE, gpus=["g1"], state=EngineState.STARTING, since=11)
    books.advance(12)

    assert books.seconds("g0")["decode"] == 4


def test_a_phase_that_takes_over_a_device_has_it_from_then_on() -> None:
    """A decode engine grows by the device that a prefill engine gives up at 10 s."""
    books = Books(gpus=2)
    prefill, decode = Teller("p", pid=1), Teller("d", pid=2)
    books.engine("p", Role.PREFILL, ["g0", "g1"])
    books.engine("d", Role.DECODE, [])
    for teller in (prefill, decode):
        books.beat(teller, 0)
    for t in range(1, 21):
        if t == 11:
            books.engine("p", Role.PREFILL, ["g0"], since=10)
            books.engine("d", Role.DECODE, ["g1"], since=10)
        books.step(prefill, prefill.prefill(t, 1))
        books.step(decode, decode.decode(t, 1))
        books.advance(t)
    for teller in (prefill, decode):
        books.beat(teller, 26)
    books.advance(26)

    assert books.seconds("g0") == {"prefill": 20}
    assert books.seconds("g1") == {"prefill": 10, "decode": 10}
    assert books.unbalanced() == []


MOVES = st.lists(
    st.tuples(st.floats(0.01, 0.4), st.sampled_from(["g0", "g1", "both", "stay"])), max_size=40
)


@settings(max_examples=100, deadline=None)
@given(MOVES)
def test_moves_change_where_time_is_booked_and_never_how_much(
    moves: list[tuple[float, str]],
) -> None:
    """A device's worth of decode a step is on one device or on two, and on none is it twice."""
    books, teller, t = Books(gpus=2), Teller(), 1.0
    width, expected = 1, 0.0
    books.engine(gpus=["g0"])
    books.beat(teller, 0)
    for length, where in moves:
        if where != "stay":
            gpus = ["g0", "g1"] if where == "both" else [where]
            books.engine(gpus=gpus, since=t)
            width = len(gpus)
        t += length
        step = teller.decode(t, length)
        books.step(teller, step)
        expected += width * step.elapsed_ns / 1e9
        books.advance(t)
    for later in range(1, 20):
        books.beat(teller, t + later)
        books.advance(t + later)

    seconds = books.engine_seconds(t + 19)
    assert seconds[Phase.DECODE] == pytest.approx(expected, abs=1e-6)
    assert books.unbalanced() == []


def test_engines_that_come_and_go_leave_nothing_behind_but_their_seconds() -> None:
    """Pods have ever new names; each of these owes step time when it goes."""
    books, now, sizes = Books(gpus=2), 0.0, []
    for number in range(60):
        name = f"pod-{number:03}"
        teller = Teller(name, pid=number + 1)
        books.engine(name, Role.DECODE, ["g0"], since=now)
        books.beat(teller, now)
        for _ in range(15):
            now += 1
            books.step(teller, teller.decode(now, 1.5, running=1))
            books.advance(now)
        books.engine(name, Role.DECODE, ["g0"], EngineState.GONE, now)
        books.advance(now)
        books.ledger.forget(name)
        sizes.append(len(pickle.dumps(books.ledger)))

    assert sizes[59] < sizes[19] * 1.1


@pytest.mark.parametrize("method", [Method.STEPS, Method.ENGINE_TIMERS])
def test_an_engine_whose_devices_nobody_knows_takes_no_memory(method: Method) -> None:
    """No device ever reads its timeline, so there is nothing to keep it for."""
    books, teller = Books(), Teller()
    books.engine(gpus=[])
    books.use(method, 0)
    sizes = []
    for t in range(1, 401):
        books.step(teller, teller.decode(t, 0.5))
        books.window(t - 1, t, t % 2, busy=0.5, method=method)
        books.advance(t)
        sizes.append(len(pickle.dumps(books.ledger)))

    assert sizes[399] < sizes[99] * 1.1
