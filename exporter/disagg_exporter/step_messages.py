"""What the daemon hears of a stream of steps: records of the wire, turned into our nouns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals, StreamKey


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


@dataclass(frozen=True, slots=True)
class Message:
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


def to_message(engine: str, record: wire.Record) -> Message:
    """Return what one record says, as heard from `engine`."""
    return Message(
        _KINDS[record.kind],
        stream_key(engine, record),
        record.flags,
        to_step(record),
        record.t_ns,
    )


def to_step(record: wire.Record) -> Step:
    """Return a record's step, its running totals with it."""
    return Step(
        t_ns=record.t_ns,
        elapsed_ns=record.elapsed_ns,
        sequence=record.sequence,
        context_requests=record.context_requests,
        context_tokens=record.context_tokens,
        generation_requests=record.generation_requests,
        generation_tokens=record.generation_tokens,
        encoder_inputs=record.encoder_inputs,
        computed_tokens=record.computed_tokens,
        cached_tokens=record.cached_tokens,
        external_tokens=record.external_tokens,
        running=record.running,
        waiting=record.waiting,
        deferred=record.deferred,
        kv_usage_ratio=record.kv_usage_ratio,
        preemptions=record.preemptions,
        dummy=bool(record.flags & wire.DUMMY),
        totals=StepTotals(
            steps=(
                record.steps_context,
                record.steps_generation,
                record.steps_mixed,
                record.steps_dummy,
            ),
            elapsed_ns=(record.ns_context, record.ns_generation, record.ns_mixed, record.ns_dummy),
            prefill_tokens=record.prefill_tokens,
            decode_tokens=record.decode_tokens,
            drops=record.drops,
        ),
    )


def stream_key(engine: str, record: wire.Record) -> StreamKey:
    """Return whose counters the record's totals and sequence number belong to."""
    return StreamKey(engine, record.pid, record.incarnation, record.engine_index)
