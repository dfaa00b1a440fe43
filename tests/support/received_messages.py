"""The messages that a listener received, one by one, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.model import StreamKey
from disagg_exporter.steps.messages import (
    ControlMessage,
    MessageKind,
    StepEvent,
    StepRecords,
    record_runs,
)
from disagg_exporter.steps.rows import rows_of, steps_of


def one_by_one(event: StepEvent) -> list[ControlMessage]:
    """Return the steps of a batch as separate messages; anything else unchanged."""
    if isinstance(event, ControlMessage):
        return [event]
    step = MessageKind.STEP
    return [ControlMessage(step, event.key, event.flags, s, s.t_ns) for s in steps_of(event.rows)]


def messages_of(packets: Iterable[bytes], engine: str = "e", pid: int = 1) -> list[ControlMessage]:
    """Return the messages in packets that all arrived on one connection."""
    runs, _ = record_runs(list(packets))
    return [
        message
        for run in runs
        for message in one_by_one(
            run.event(StreamKey(engine, pid, run.incarnation, run.engine_index))
        )
    ]


def at_once(message: ControlMessage) -> StepRecords:
    """Return the message of a step as the listener would report it."""
    assert message.step is not None
    return StepRecords(message.key, message.flags, rows_of([message.step]))
