"""An engine's limits on the wire: in its hello, and nowhere else."""

from __future__ import annotations

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.stream import Stream
from disagg_exporter.model import StepLimits, StreamKey
from disagg_exporter.steps.messages import ControlMessage, record_runs

KEY = StreamKey("e", 1, 9, 0)


def control_messages(*packets: bytes) -> list[ControlMessage]:
    runs, bad = record_runs(packets)
    assert bad == 0
    events = [run.event(KEY) for run in runs]
    return [event for event in events if isinstance(event, ControlMessage)]


def test_a_hello_with_limits_reports_them_and_its_step_has_no_work() -> None:
    stream = Stream(1, 0, 9, 0, lambda *report: report)

    (hello,) = control_messages(stream.standing(wire.HELLO, 7, 3, (8192, 64)))

    assert (hello.limits, hello.in_flight) == (StepLimits(8192, 64), 3)
    assert hello.step is not None
    assert (hello.step.context_tokens, hello.step.generation_requests) == (0, 0)
    assert hello.step.context_requests == 0


def test_a_hello_without_limits_reports_none() -> None:
    stream = Stream(1, 0, 9, 0, lambda *report: report)

    hellos = control_messages(stream.standing(wire.HELLO, 7), stream.standing(wire.HELLO, 8, 0))

    assert [hello.limits for hello in hellos] == [None, None]
