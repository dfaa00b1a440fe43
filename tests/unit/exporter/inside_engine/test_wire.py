"""Packets of step records: one or several, of our length or a later version's."""

from __future__ import annotations

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.steps.messages import record_runs


def record(sequence: int, record_bytes: int = wire.BYTES) -> wire.Record:
    blank = [wire.VERSION, wire.STEP, *[0] * (len(wire.Record._fields) - 2)]
    return wire.Record._make(blank)._replace(sequence=sequence, record_bytes=record_bytes)


def heard(packet: bytes) -> tuple[list[int], int]:
    """The numbers of the steps in a packet, and whether it has an error."""
    runs, bad = record_runs([packet])
    told = [run.rows["sequence"].tolist() for run in runs if run.rows is not None]
    return [number for some in told for number in some], bad


def test_a_packet_holds_its_records_in_their_order() -> None:
    sent = [wire.encode(record(sequence)) for sequence in (3, 1, 2)]

    assert heard(b"".join(sent)) == ([3, 1, 2], 0)


def test_a_record_without_a_length_is_a_whole_packet() -> None:
    assert heard(wire.encode(record(7, record_bytes=0))) == ([7], 0)
    assert heard(wire.encode(record(7, record_bytes=0)) + b"of a later version") == ([7], 0)


def test_longer_records_of_a_later_version_are_read_as_far_as_known() -> None:
    more = b"and more"
    sent = [wire.encode(record(n, wire.BYTES + len(more))) + more for n in (1, 2, 3)]

    assert heard(b"".join(sent)) == ([1, 2, 3], 0)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        bytes(wire.BYTES),
        wire.encode(record(1))[:-1],
        wire.encode(record(1, wire.BYTES - 1)),
        wire.encode(record(1, wire.MAX_RECORD_BYTES + 1)) + bytes(wire.MAX_RECORD_BYTES),
        wire.encode(record(1, record_bytes=0)) * 2,
        wire.encode(record(1)) * (wire.MAX_PACKET_BYTES // wire.BYTES + 1),
        wire.encode(record(1)._replace(kind=4)),
        wire.encode(record(1)._replace(kv_usage_ratio=-0.5)),
    ],
)
def test_invalid_packets_are_refused(packet: bytes) -> None:
    assert heard(packet) == ([], 1)


@pytest.mark.parametrize("wrong", [wire.encode(record(3)._replace(version=0)), b"half a record"])
def test_valid_records_before_an_invalid_one_are_accepted(wrong: bytes) -> None:
    assert heard(wire.encode(record(1)) + wire.encode(record(2)) + wrong) == ([1, 2], 1)
