"""Overlapped engines whose plugin adds up held time: lost records have a length."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import Facts
from disagg_exporter.inside_engine.disagg_steps.stream import StepReport, Stream
from disagg_exporter.model import Phase, Role, StreamKey
from disagg_exporter.steps.messages import record_runs
from support.accounting import NodeAccounting, ns

KEY = StreamKey("e", 1, 1, 0)


class Event(NamedTuple):
    """A step, or a state without one, some time after the event before."""

    after: float
    elapsed: float = 0.01
    context_tokens: int = 0
    running: int = 1
    counted: bool = True


class Overlapped:
    """An engine with async scheduling, told of by our plugin, or by one that adds up waits."""

    def __init__(self, accounting: NodeAccounting, *, held_totals: bool = True) -> None:
        self.accounting = accounting
        self.now = 0.0
        self._held_totals = held_totals
        self._stream = Stream(1, 0, 1, wire.OVERLAPPED, lambda *told: StepReport(*told), late=True)

    def play(self, events: list[Event], heard: bool = True) -> None:
        for event in events:
            self.now = round(self.now + event.after, 6)
            facts = Facts(
                ns(event.elapsed) if event.counted else 0,
                context_requests=int(event.context_tokens > 0),
                context_tokens=event.context_tokens if event.counted else 0,
                computed_tokens=event.context_tokens if event.counted else 0,
                generation_tokens=int(event.counted and not event.context_tokens),
                running=event.running,
            )
            record = self._stream.record(ns(self.now), (facts, event.counted))
            assert record is not None
            if heard:
                self.deliver(record)

    def beat(self) -> None:
        self.deliver(self._stream.standing(wire.HEARTBEAT, ns(self.now)))

    def deliver(self, packet: bytes) -> None:
        [run], bad = record_runs([packet])
        assert not bad
        assert run.flags == wire.OVERLAPPED | wire.HELD_TOTALS
        told = run.event(KEY)
        if run.rows is not None:
            self.accounting.ledger.steps(KEY, run.rows, now_ns=ns(self.now))
        elif run.step is not None:
            self.accounting.ledger.heartbeat(
                told.key,
                run.step,
                overlapped=True,
                held_totals=self._held_totals,
                now_ns=ns(self.now),
            )

    def rest(self) -> None:
        """Let so much time pass that everything is committed."""
        for _ in range(20):
            self.now = round(self.now + 1, 6)
            self.beat()
            self.accounting.advance(self.now)

    @property
    def held(self) -> dict[Phase, float]:
        """The seconds that the plugin has added up, of context and of generation."""
        [run], _ = record_runs([self._stream.standing(wire.HEARTBEAT, 0)])
        assert run.step is not None
        context, generation, mixed, dummy = run.step.totals.elapsed_ns
        assert mixed == dummy == 0
        return {Phase.PREFILL: context / 1e9, Phase.DECODE: generation / 1e9}


def engine(*, held_totals: bool = True) -> Overlapped:
    accounting = NodeAccounting()
    accounting.engine(role=Role.MIXED)
    overlapped = Overlapped(accounting, held_totals=held_totals)
    overlapped.beat()
    return overlapped


def test_a_step_is_held_from_record_to_record_and_the_first_after_idle_for_its_elapsed() -> None:
    running = engine()
    running.play([Event(5, elapsed=0.2), Event(0.3), Event(0.4, running=0), Event(7, elapsed=0.1)])

    assert running.held == {Phase.PREFILL: 0, Phase.DECODE: pytest.approx(0.2 + 0.3 + 0.4 + 0.1)}


def test_a_state_record_between_two_steps_is_part_of_the_second() -> None:
    running = engine()
    running.play([Event(5, elapsed=0.2), Event(0.3, counted=False), Event(0.4, context_tokens=9)])
    # A wait for a first step counts only with a step; time until the requests ended is held.
    running.play([Event(1, counted=False, running=0), Event(3, counted=False), Event(0.5)])

    assert running.held == {
        Phase.PREFILL: pytest.approx(0.7),
        Phase.DECODE: pytest.approx(0.2 + 1 + 0.5),
    }


def test_time_by_which_the_record_of_a_prompt_is_late_is_accounted_as_the_next_steps() -> None:
    running = engine()
    late = [Event(0.4), Event(0.4), Event(1.1, context_tokens=9), Event(0.3)]
    running.play([Event(5, elapsed=0.2), *late, *late, Event(0.4, running=0)])
    running.rest()

    prefill, decode = 1.1 + 1.0, 0.2 + 0.4 + 0.4 + 0.3 + 0.4 + 0.4 + 0.4 + 0.4
    assert running.held == {
        Phase.PREFILL: pytest.approx(prefill),
        Phase.DECODE: pytest.approx(decode),
    }
    assert running.accounting.engine_seconds(running.now) == pytest.approx(running.held, abs=1e-6)


EVENTS = st.lists(
    st.builds(
        Event,
        after=st.floats(0.001, 3).map(lambda seconds: round(seconds, 6)),
        # So long that the engine waited for the step, whose record is not late then.
        elapsed=st.floats(0.0002, 0.001).map(lambda seconds: round(seconds, 6)),
        context_tokens=st.integers(0, 2),
        running=st.integers(0, 1),
        counted=st.booleans(),
    ),
    max_size=12,
)


@given(EVENTS)
def test_complete_streams_are_accounted_alike_with_either_plugin(events: list[Event]) -> None:
    """Only the phase of a state record between two steps is known more precisely.

    And how late the records of prompts are, from decode steps after them.
    """
    sums = []
    for held_totals in (True, False):
        running = engine(held_totals=held_totals)
        running.play([*events, Event(1, running=0)])
        running.rest()
        booked = running.accounting.engine_seconds(running.now)
        assert sum(booked.values()) == pytest.approx(sum(running.held.values()), abs=1e-6)
        sums.append(booked)
        assert running.accounting.unbalanced() == []
    shows_lateness = any(a.context_tokens and not b.context_tokens for a, b in pairwise(events))
    if all(event.counted for event in events) and not shows_lateness:
        assert sums[0] == pytest.approx(sums[1], abs=1e-6)


@given(EVENTS, EVENTS, EVENTS, st.booleans(), st.booleans())
def test_lost_and_unreceived_records_are_restored_from_the_held_totals(
    before: list[Event], lost: list[Event], after: list[Event], dies: bool, beats: bool
) -> None:
    running = engine()
    running.play(before)
    running.accounting.advance(running.now)
    died = running.now
    running.play(lost, heard=False)
    if dies:
        running.accounting = running.accounting.successor(died, running.now)
        running.accounting.advance(running.now)
    if beats:
        running.beat()
    running.play([*after, Event(1, running=0)])
    running.rest()

    booked = running.accounting.engine_seconds(running.now)
    assert booked == pytest.approx(running.held, abs=1e-6)
    assert running.accounting.cut(running.now) == running.accounting.owed(running.now) == 0
    assert running.accounting.unbalanced() == []


@pytest.mark.parametrize("absent", [5.0, 600.0])
def test_lost_records_of_an_older_plugin_have_no_invented_length(absent: float) -> None:
    """A span does not reach across an absence: the engine may have been idle meanwhile."""
    running = engine(held_totals=False)
    running.play([Event(0.5)] * 40)
    running.accounting.advance(running.now)
    died = running.now
    running.play([Event(absent / 10)] * 10, heard=False)
    running.accounting = running.accounting.successor(died, running.now)
    running.play([*[Event(0.5)] * 4, Event(1, running=0)])
    running.rest()

    booked = running.accounting.engine_seconds(running.now)
    assert booked[Phase.DECODE] == pytest.approx(19.51 + 0.01 + 3 * 0.5 + 1, abs=1e-6)
    assert running.accounting.seconds()["unobserved"] == pytest.approx(absent, abs=0.51)


def test_records_that_go_to_several_servers_reach_from_one_to_the_next_of_any() -> None:
    """Any of an engine's API servers gets a step's record; the time of a step is counted once."""
    accounting = NodeAccounting()
    accounting.engine(role=Role.MIXED)
    servers = [
        Stream(pid, 0, 1, wire.OVERLAPPED, lambda *told: StepReport(*told), late=True, shared=True)
        for pid in (1, 2)
    ]

    def deliver(number: int, packet: bytes | None, at: float) -> None:
        [run], _ = record_runs([packet or b""])
        key = KEY._replace(pid=1 + number)
        if run.rows is not None:
            accounting.ledger.steps(key, run.rows, now_ns=ns(at))
        elif run.step is not None:
            accounting.ledger.heartbeat(
                key,
                run.step,
                overlapped=True,
                held_totals=bool(run.flags & wire.HELD_TOTALS),
                now_ns=ns(at),
            )

    for number, server in enumerate(servers):
        deliver(number, server.standing(wire.HEARTBEAT, 0), 0.0)
    facts = Facts(ns(0.001), generation_requests=4, generation_tokens=4, running=4)
    for step in range(200):
        at = 5 + 0.01 * step
        number = int(step % 3 > 0)
        deliver(number, servers[number].record(ns(at), (facts, True)), at)
    end = 5 + 0.01 * 200
    last = facts._replace(running=0)
    deliver(0, servers[0].record(ns(end), (last, True)), end)
    for second in range(1, 15):
        for number, server in enumerate(servers):
            deliver(number, server.standing(wire.HEARTBEAT, ns(end + second)), end + second)
        accounting.advance(end + second)

    assert accounting.engine_seconds(end + 14)[Phase.DECODE] == pytest.approx(2.001, abs=0.002)
