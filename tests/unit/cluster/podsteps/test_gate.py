"""What one pod's stream of steps may bring into the books of a node."""

from __future__ import annotations

import pytest

from disagg_cluster.podsteps.gate import MAX_RANKS, MAX_STREAMS, STREAMS_AT_ONCE, Gate
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps import Message, MessageKind
from support.books import ns

NOW = ns(10_000)


def message(incarnation: int = 1, index: int = 0, age_seconds: float = 0.0, **facts: object):  # type: ignore[no-untyped-def]
    t_ns = NOW - ns(age_seconds)
    step = Step(t_ns, ns(0.01), 1)._replace(**facts)  # type: ignore[arg-type]
    return Message(MessageKind.STEP, StreamKey("uid", 0, incarnation, index), 0, step, t_ns)


@pytest.mark.parametrize("age", [0.0, 5.0, 599.0])
def test_steps_of_the_recent_past_pass(age: float) -> None:
    assert Gate(0).admits(message(age_seconds=age), NOW)


@pytest.mark.parametrize(
    "told",
    [
        message(age_seconds=-1.0),
        message(age_seconds=601.0),
        message(elapsed_ns=ns(601)),
        message(elapsed_ns=1 << 63),
        message(kv_usage_ratio=float("nan")),
        message(kv_usage_ratio=float("inf")),
        message(kv_usage_ratio=-0.1),
        message(sequence=1 << 60),
        message(totals=StepTotals(prefill_tokens=1 << 63)),
        message(totals=StepTotals(elapsed_ns=(1 << 63, 0, 0, 0))),
        message(index=MAX_RANKS),
    ],
)
def test_what_no_engine_would_say_is_turned_away_and_counted(told: Message) -> None:
    gate = Gate(0)

    assert not gate.admits(told, NOW)
    assert gate.refused == 1


def test_streams_begin_anew_as_often_as_engines_do_and_no_more_often() -> None:
    gate = Gate(NOW)

    admitted = [gate.admits(message(incarnation=at), NOW) for at in range(10_000)]
    assert sum(admitted) == STREAMS_AT_ONCE
    assert gate.admits(message(incarnation=0), NOW), "those that are known go on"

    later = NOW + ns(30 * 24 * 3600)
    told = [message(incarnation=at)._replace(t_ns=later) for at in range(10_000)]
    assert sum(gate.admits(each, later) for each in told) == MAX_STREAMS
