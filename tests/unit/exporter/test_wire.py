"""Packets of step records: one or several, of our length or a later version's."""

from __future__ import annotations

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire


def record(sequence: int, record_bytes: int = wire.BYTES) -> wire.Record:
    blank = [wire.VERSION, wire.STEP, *[0] * (len(wire.Record._fields) - 2)]
    return wire.Record._make(blank)._replace(sequence=sequence, record_bytes=record_bytes)


def sequences(packet: bytes) -> list[int]:
    return [each.sequence for each in wire.records(packet)]


def test_a_packet_holds_its_records_in_their_order() -> None:
    sent = [record(sequence) for sequence in (3, 1, 2)]

    assert list(wire.records(b"".join(map(wire.encode, sent)))) == sent


def test_a_record_that_names_no_length_is_a_packet_of_its_own() -> None:
    assert sequences(wire.encode(record(7, record_bytes=0))) == [7]
    assert sequences(wire.encode(record(7, record_bytes=0)) + b"of a later version") == [7]


def test_longer_records_of_a_later_version_are_read_as_far_as_known() -> None:
    more = b"and more"
    sent = [wire.encode(record(n, wire.BYTES + len(more))) + more for n in (1, 2, 3)]

    assert sequences(b"".join(sent)) == [1, 2, 3]


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
def test_what_is_no_packet_of_records_says_so(packet: bytes) -> None:
    with pytest.raises(wire.WireError):
        list(wire.records(packet))


@pytest.mark.parametrize("wrong", [wire.encode(record(3)._replace(version=0)), b"half a record"])
def test_what_is_good_comes_before_the_error(wrong: bytes) -> None:
    records = wire.records(wire.encode(record(1)) + wire.encode(record(2)) + wrong)

    assert [next(records).sequence, next(records).sequence] == [1, 2]
    with pytest.raises(wire.WireError):
        next(records)
