"""What a listener heard, message by message, as tests like to look at it."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.model import StreamKey
from disagg_exporter.steps.messages import Message, MessageKind, Records, Told, runs_of
from disagg_exporter.steps.rows import rows_of, steps_of


def one_by_one(told: Told) -> list[Message]:
    """Return the steps of a batch as messages of their own; anything else as it is."""
    if isinstance(told, Message):
        return [told]
    step = MessageKind.STEP
    return [Message(step, told.key, told.flags, s, s.t_ns) for s in steps_of(told.rows)]


def messages_of(packets: Iterable[bytes], engine: str = "e", pid: int = 1) -> list[Message]:
    """Return what packets say that all came on one connection."""
    runs, _ = runs_of(list(packets))
    return [
        message
        for run in runs
        for message in one_by_one(
            run.told(StreamKey(engine, pid, run.incarnation, run.engine_index))
        )
    ]


def at_once(message: Message) -> Records:
    """Return the message of a step as the listener would have told it."""
    assert message.step is not None
    return Records(message.key, message.flags, rows_of([message.step]))
