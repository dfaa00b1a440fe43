"""Packets of step records, decoded record by record."""

from __future__ import annotations

from disagg_exporter.inside_engine.disagg_steps import wire


def records_in(packet: bytes) -> list[wire.Record]:
    """Return the records of one packet."""
    first = wire.Record._make(wire.LAYOUT.unpack_from(packet))
    apart = first.record_bytes or len(packet)
    places = range(0, len(packet), apart)
    return [wire.Record._make(wire.LAYOUT.unpack_from(packet, at)) for at in places]
