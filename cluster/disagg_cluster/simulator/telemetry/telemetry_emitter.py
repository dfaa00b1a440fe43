"""The records of one engine process, as the plugin inside a real one would send them."""

from __future__ import annotations

from disagg_cluster.simulator.engine.batch import Standing
from disagg_cluster.simulator.engine.steps import Outcome
from disagg_cluster.simulator.telemetry.facts import facts_of, state_of
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import (
    DROPS,
    NOTHING_YET,
    STEPS,
    Facts,
    count,
)
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.messages import Message, MessageKind

_NEWS_KV_RATIO = 0.01


class Teller:
    """One stream: numbers its records and carries the running totals, which the plugin counts.

    Args:
        engine: The engine's name.
        pid, incarnation: Whose stream it is.
        flags: `wire` flags of every record, beside SIMULATED.
    """

    def __init__(self, engine: str, pid: int, incarnation: int, flags: int = 0) -> None:
        self._key = StreamKey(engine, pid, incarnation, engine_index=0)
        self._flags = flags | wire.SIMULATED
        self._sequence = 0
        self._totals = list(NOTHING_YET)
        self._shown = StepTotals()
        self._told = Standing()
        self._state: Facts | None = None

    def step(self, outcome: Outcome, standing: Standing, t_ns: int) -> Message:
        """Tell steps that have ended; more than one at once as if they were one long step."""
        facts = facts_of(outcome, standing)
        count(self._totals, facts)
        # Runs are of pure writing, so all of their steps are of this one kind.
        self._totals[STEPS + wire.GENERATION] += outcome.count - 1
        return self._next(facts, standing, t_ns)

    def state(self, standing: Standing, t_ns: int) -> Message | None:
        """Tell a new state between two steps; None if it is no news."""
        told = self._told
        requests = (standing.running, standing.waiting, standing.deferred)
        if requests == (told.running, told.waiting, told.deferred) and (
            abs(standing.kv_usage_ratio - told.kv_usage_ratio) < _NEWS_KV_RATIO
        ):
            return None
        return self._next(state_of(standing), standing, t_ns)

    def hello(self, t_ns: int) -> Message:
        """Tell that the connection is new."""
        return self._standing(MessageKind.HELLO, t_ns)

    def heartbeat(self, t_ns: int) -> Message:
        """Tell that the process lives."""
        return self._standing(MessageKind.HEARTBEAT, t_ns)

    def drop(self) -> None:
        """Count a record that was made and could not be sent."""
        self._totals[DROPS] += 1

    def _next(self, facts: Facts, standing: Standing, t_ns: int) -> Message:
        self._sequence += 1
        self._told = standing
        self._state = None
        totals = self._totals
        self._shown = StepTotals(
            (totals[0], totals[1], totals[2], totals[3]),
            (totals[4], totals[5], totals[6], totals[7]),
            *totals[8:],
        )
        return self._message(MessageKind.STEP, facts, t_ns)

    def _standing(self, kind: MessageKind, t_ns: int) -> Message:
        if self._state is None:
            self._state = state_of(self._told)
        return self._message(kind, self._state, t_ns)

    def _message(self, kind: MessageKind, facts: Facts, t_ns: int) -> Message:
        # Built without a `wire.Record` in between, which would take most of a simulated day.
        step = Step(t_ns, facts[0], self._sequence, *facts[1:], False, self._shown)
        return Message(kind, self._key, self._flags, step, t_ns)
