"""What the daemon hears of a stream of steps: records of the wire, turned into our nouns."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals, StreamKey

_new = tuple.__new__


def _fields(first: str, last: str) -> slice:
    """Where some neighbouring fields lie in a record."""
    names = wire.Record._fields
    return slice(names.index(first), names.index(last) + 1)


_WORK = _fields("context_requests", "preemptions")
_STEPS = _fields("steps_context", "steps_dummy")
_ELAPSED = _fields("ns_context", "ns_dummy")
_TOKENS_AND_DROPS = _fields("prefill_tokens", "drops")


class MessageKind(StrEnum):
    """What a stream of steps told: it began a connection, took a step, lives, or hung up."""

    HELLO = "hello"
    STEP = "step"
    HEARTBEAT = "heartbeat"
    DISCONNECTED = "disconnected"


_KINDS = {
    wire.HELLO: MessageKind.HELLO,
    wire.STEP: MessageKind.STEP,
    wire.HEARTBEAT: MessageKind.HEARTBEAT,
}


class Message(NamedTuple):
    """One thing heard from a stream; `flags` are those of `wire`.

    `step` is the step taken. In a hello and a heartbeat it holds no work: only the state, the
    totals and the sequence number that the stream's last step reached. It is None when the
    stream hung up, which is not its engine's death: the plugin may be back within a second.
    """

    kind: MessageKind
    key: StreamKey
    flags: int
    step: Step | None
    t_ns: int


def to_message(key: StreamKey, record: wire.Record) -> Message:
    """Return what one record says, as heard from a stream."""
    return _new(Message, (_KINDS[record.kind], key, record.flags, to_step(record), record.t_ns))


def to_step(record: wire.Record) -> Step:
    """Return a record's step, its running totals with it."""
    # By position: every step of every engine passes here, and names would cost twice as much.
    fields: tuple[Any, ...] = record
    totals = _new(StepTotals, (fields[_STEPS], fields[_ELAPSED], *fields[_TOKENS_AND_DROPS]))
    dummy = bool(record.flags & wire.DUMMY)
    when = record.t_ns, record.elapsed_ns, record.sequence
    return _new(Step, (*when, *fields[_WORK], dummy, totals, None))


def stream_key(engine: str, record: wire.Record) -> StreamKey:
    """Return whose counters the record's totals and sequence number belong to."""
    return StreamKey(engine, record.pid, record.incarnation, record.engine_index)
