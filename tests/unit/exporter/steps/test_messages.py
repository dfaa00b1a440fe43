"""From packets on the wire to our messages: every field in its place."""

from __future__ import annotations

import math

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.messages import MessageKind, StepRecords, record_runs
from disagg_exporter.steps.rows import LARGEST, steps_of
from support.received_messages import messages_of

# All numbers differ, so that no two fields can be exchanged unseen.
RECORD = wire.Record(
    wire.VERSION, wire.STEP, wire.OVERLAPPED | wire.DUMMY, 17, 2, 0, 18, 19, 20, 21,
    *range(22, 33), 0.5, 34, *range(35, 46),
)  # fmt: skip


def _longer(record: wire.Record, record_bytes: int) -> bytes:
    """A record of a later version: what we know of it, and more."""
    return wire.encode(record._replace(record_bytes=record_bytes)).ljust(record_bytes, b"?")


def test_a_record_becomes_a_step_with_its_totals() -> None:
    (message,) = messages_of([wire.encode(RECORD)])

    assert message.step == Step(
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
    (message,) = messages_of([wire.encode(RECORD)], "decode-0", pid=17)

    assert message.key == StreamKey("decode-0", 17, 18, 2)


def test_a_message_keeps_kind_flags_and_time() -> None:
    sent = RECORD._replace(kind=wire.HEARTBEAT, flags=wire.SIMULATED)
    (heartbeat,) = messages_of([wire.encode(sent)])

    assert heartbeat.kind is MessageKind.HEARTBEAT
    assert (heartbeat.flags, heartbeat.t_ns) == (wire.SIMULATED, 20)
    assert heartbeat.step is not None
    assert heartbeat.step.dummy is False


def test_consecutive_records_of_a_stream_are_one_run_including_dummy_steps() -> None:
    sent = [RECORD._replace(sequence=n, flags=wire.DUMMY * n) for n in (0, 1)]
    sent.append(RECORD._replace(engine_index=3))
    alone, *together = (_longer(record, wire.BYTES) for record in sent)

    runs, bad = record_runs([alone, b"".join(together)])

    assert bad == 0
    assert [(run.engine_index, run.records) for run in runs] == [(2, 2), (3, 1)]
    records = runs[0].event(StreamKey("e", 1, 18, 2))
    assert isinstance(records, StepRecords)
    assert [step.dummy for step in steps_of(records.rows)] == [False, True]


def test_longer_records_of_a_later_version_are_read_as_far_as_known() -> None:
    packet = b"".join(_longer(RECORD._replace(sequence=n), 200) for n in (1, 2, 3))

    messages = messages_of([packet, wire.encode(RECORD)])

    assert [m.step.sequence for m in messages if m.step] == [1, 2, 3, 19]
    assert {m.step.totals.drops for m in messages if m.step} == {45}


@pytest.mark.parametrize("field", ["sequence", "elapsed_ns", "ns_dummy", "drops"])
def test_a_value_over_63_bits_is_clamped_and_not_negative(field: str) -> None:
    runs, _ = record_runs([wire.encode(RECORD._replace(**{field: 2**64 - 1}))])

    assert runs[0].rows is not None
    assert runs[0].rows[field].tolist() == [LARGEST]


@pytest.mark.parametrize(
    "changes",
    [{}, {"flags": 0}, {"record_bytes": wire.BYTES}, {"sequence": 2**64 - 1}, {"drops": 2**63}],
)
def test_a_lone_heartbeat_is_decoded_like_one_among_other_records(changes: dict[str, int]) -> None:
    """A lone heartbeat is decoded on a shorter path."""
    beat = RECORD._replace(kind=wire.HEARTBEAT, flags=wire.OVERLAPPED)._replace(**changes)
    among = [wire.encode(beat), wire.encode(RECORD._replace(engine_index=9))]

    assert messages_of([wire.encode(beat)]) == messages_of(among)[:1]


@pytest.mark.parametrize(
    "changes", [{"version": 0}, {"kind": 9}, {"record_bytes": 7}, {"kv_usage_ratio": math.nan}]
)
def test_an_invalid_lone_heartbeat_is_refused(changes: dict[str, float]) -> None:
    beat = RECORD._replace(kind=wire.HEARTBEAT)._replace(**changes)  # type: ignore[arg-type]

    assert record_runs([wire.encode(beat)]) == ([], 1)
