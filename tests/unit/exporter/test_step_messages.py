"""From a record on the wire to our nouns: every field where it belongs."""

from __future__ import annotations

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.step_messages import MessageKind, stream_key, to_message, to_step

# All numbers differ, so that no two fields can be exchanged unseen.
RECORD = wire.Record(
    wire.VERSION, wire.STEP, wire.OVERLAPPED | wire.DUMMY, 17, 2, 0, 18, 19, 20, 21,
    *range(22, 33), 0.5, 34, *range(35, 46),
)  # fmt: skip


def test_a_record_becomes_a_step_with_its_totals() -> None:
    assert to_step(RECORD) == Step(
        t_ns=20,
        elapsed_ns=21,
        sequence=19,
        context_requests=22,
        context_tokens=23,
        generation_requests=24,
        generation_tokens=25,
        encoder_inputs=26,
        computed_tokens=27,
        cached_tokens=28,
        external_tokens=29,
        running=30,
        waiting=31,
        deferred=32,
        kv_usage_ratio=0.5,
        preemptions=34,
        dummy=True,
        totals=StepTotals(
            steps=(35, 36, 37, 38),
            elapsed_ns=(39, 40, 41, 42),
            prefill_tokens=43,
            decode_tokens=44,
            drops=45,
        ),
    )


def test_a_stream_is_its_process_incarnation_and_rank() -> None:
    assert stream_key("decode-0", RECORD) == StreamKey("decode-0", 17, 18, 2)


def test_a_record_survives_the_wire() -> None:
    assert list(wire.records(wire.encode(RECORD))) == [RECORD]


def test_a_message_keeps_kind_flags_and_time() -> None:
    heartbeat = to_message(
        stream_key("decode-0", RECORD),
        RECORD._replace(kind=wire.HEARTBEAT, flags=wire.SIMULATED),
    )

    assert heartbeat.kind is MessageKind.HEARTBEAT
    assert (heartbeat.flags, heartbeat.t_ns) == (wire.SIMULATED, 20)
    assert heartbeat.step is not None
    assert heartbeat.step.dummy is False
