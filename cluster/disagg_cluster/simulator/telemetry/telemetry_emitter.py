"""The records of one engine process, as the plugin inside a real one would send them."""

from __future__ import annotations

from disagg_cluster.simulator.engine.batch import Outcome, SchedulerState
from disagg_cluster.simulator.telemetry.step_facts import facts_of, state_of
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import (
    DROPS,
    NOTHING_YET,
    STEPS,
    Facts,
    count,
)
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.messages import ControlMessage, MessageKind

_NEWS_KV_RATIO = 0.01


class TelemetryEmitter:
    """One stream: numbers its records and carries the running totals, like the plugin.

    Args:
        engine: The engine's name.
        pid, incarnation: Identify the stream.
    """

    def __init__(self, engine: str, pid: int, incarnation: int) -> None:
        self._key = StreamKey(engine, pid, incarnation, engine_index=0)
        self._sequence = 0
        self._totals = list(NOTHING_YET)
        self._step_totals = StepTotals()
        self._reported = SchedulerState()
        self._state_facts: Facts | None = None

    def step(self, outcome: Outcome, state: SchedulerState, t_ns: int) -> ControlMessage:
        """Return the record of ended steps; several as if they were one long step."""
        facts = facts_of(outcome, state)
        count(self._totals, facts)
        # Runs only decode, so all of their steps are of this one kind.
        self._totals[STEPS + wire.GENERATION] += outcome.count - 1
        return self._next(facts, state, t_ns)

    def state_change(self, state: SchedulerState, t_ns: int) -> ControlMessage | None:
        """Return the record of a state between two steps; None if it has not changed."""
        before = self._reported
        requests = (state.running, state.waiting, state.deferred)
        if requests == (before.running, before.waiting, before.deferred) and (
            abs(state.kv_usage_ratio - before.kv_usage_ratio) < _NEWS_KV_RATIO
        ):
            return None
        return self._next(state_of(state), state, t_ns)

    def hello(self, t_ns: int) -> ControlMessage:
        """Return the first message of a connection."""
        return self._without_step(MessageKind.HELLO, t_ns)

    def heartbeat(self, t_ns: int, in_flight: int) -> ControlMessage:
        """Return a heartbeat, with the number of unanswered requests."""
        message = self._without_step(MessageKind.HEARTBEAT, t_ns)
        return message._replace(flags=wire.SIMULATED | wire.IN_FLIGHT, in_flight=in_flight)

    def drop(self) -> None:
        """Count a record that was made and could not be sent."""
        self._totals[DROPS] += 1

    def _next(self, facts: Facts, state: SchedulerState, t_ns: int) -> ControlMessage:
        self._sequence += 1
        self._reported = state
        self._state_facts = None
        totals = self._totals
        self._step_totals = StepTotals(
            (totals[0], totals[1], totals[2], totals[3]),
            (totals[4], totals[5], totals[6], totals[7]),
            *totals[8:],
        )
        return self._message(MessageKind.STEP, facts, t_ns)

    def _without_step(self, kind: MessageKind, t_ns: int) -> ControlMessage:
        if self._state_facts is None:
            self._state_facts = state_of(self._reported)
        return self._message(kind, self._state_facts, t_ns)

    def _message(self, kind: MessageKind, facts: Facts, t_ns: int) -> ControlMessage:
        # Built without an intermediate `wire.Record`, which would take most of a simulated day.
        step = Step(t_ns, facts[0], self._sequence, *facts[1:], False, self._step_totals)
        return ControlMessage(kind, self._key, wire.SIMULATED, step, t_ns)
