"""Requests in flight on the wire, with plugins and daemons that do not know the flag, too."""

from __future__ import annotations

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.counting import Facts
from disagg_exporter.inside_engine.disagg_steps.stream import Stream
from disagg_exporter.model import StreamKey
from disagg_exporter.steps.messages import ControlMessage, StepRecords, record_runs

KEY = StreamKey("e", 1, 9, 0)
STEP = Facts(elapsed_ns=5, context_requests=2, context_tokens=8, running=1)


def stream(flags: int = 0) -> Stream:
    return Stream(1, 0, 9, flags, lambda *told: told)


def events(*packets: bytes) -> list[ControlMessage | StepRecords]:
    runs, bad = record_runs(packets)
    assert bad == 0
    return [run.event(KEY) for run in runs]


@pytest.mark.parametrize("kind", [wire.HELLO, wire.HEARTBEAT])
@pytest.mark.parametrize("beside", [False, True])
def test_a_control_message_reports_requests_in_flight_and_no_work(kind: int, beside: bool) -> None:
    """Alone, as of idle engines, and in one packet with steps."""
    told = stream()
    packet = told.standing(kind, 7, 3)
    if beside:
        packet = (told.record(5, (STEP, True, False, 0)) or b"") + packet

    message = events(packet)[-1]

    assert isinstance(message, ControlMessage)
    assert message.in_flight == 3
    assert message.step is not None
    assert (message.step.context_requests, message.step.context_tokens) == (0, 0)


def test_zero_requests_in_flight_differ_from_an_unknown_number() -> None:
    none, unknown = (
        events(stream().standing(wire.HEARTBEAT, 7, 0)),
        events(stream().standing(wire.HEARTBEAT, 7)),
    )

    assert [message.in_flight for message in (*none, *unknown)] == [0, None]  # type: ignore[union-attr]


def test_step_records_do_not_report_requests_in_flight() -> None:
    """The field is the step's own there, whatever flags a later plugin sets."""
    told = stream(wire.IN_FLIGHT)
    (records,) = events(told.record(5, (STEP, True, False, 0)) or b"")

    assert isinstance(records, StepRecords)
    assert records.rows["context_requests"].tolist() == [2]


def test_an_older_plugins_heartbeat_has_no_requests_in_flight() -> None:
    """A new daemon with engines that were started before it."""
    older = wire.Record._make(
        [
            wire.VERSION,
            wire.HEARTBEAT,
            0,
            1,
            0,
            wire.BYTES,
            9,
            4,
            7,
            *[0] * (len(wire.Record._fields) - 9),
        ]
    )

    (message,) = events(wire.encode(older))

    assert isinstance(message, ControlMessage)
    assert message.in_flight is None
    assert message.step is not None
    assert message.step.sequence == 4


def test_a_heartbeat_with_requests_in_flight_is_readable_by_an_older_daemon() -> None:
    """It reads layout, kind, number, state and totals, and of a heartbeat no counts."""
    told = stream()
    told.record(5, (STEP, True, False, 0))
    with_them = wire.Record._make(wire.LAYOUT.unpack(told.standing(wire.HEARTBEAT, 7, 3)))
    without = wire.Record._make(wire.LAYOUT.unpack(told.standing(wire.HEARTBEAT, 7)))

    assert with_them == without._replace(flags=wire.IN_FLIGHT, context_requests=3)
    assert (with_them.version, with_them.record_bytes) == (wire.VERSION, wire.BYTES)
