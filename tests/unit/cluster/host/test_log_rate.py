"""However often something happens, the log stays readable."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.host.daemon_output import BURST_LINES, MAX_EVENTS, LogRateLimit


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def line(limit: LogRateLimit, text: str, *values: object, level: int = logging.WARNING) -> str:
    """Return the line as written; empty if it is not."""
    record = logging.LogRecord("disagg_node", level, __file__, 1, text, values, None)
    return record.getMessage() if limit.filter(record) else ""


def test_a_repeated_event_is_written_a_few_times_and_then_once_a_minute() -> None:
    clock = Clock()
    limit = LogRateLimit(clock)
    written: list[str] = []
    for second in range(3600):
        clock.seconds = float(second)
        # What follows the first value may change at will, as an engine's words do.
        written.append(line(limit, "%s: metrics page: %s", "vllm-8100", f"x is -{second}"))

    lines = [text for text in written if text]
    assert len(lines) == BURST_LINES + 59
    assert lines[0] == "vllm-8100: metrics page: x is -0"
    left_out = "(left out since the last such line: 59)"
    assert lines[-1] == f"vllm-8100: metrics page: x is -3540 {left_out}"


def test_one_engine_that_flaps_hides_no_other_and_no_other_event() -> None:
    limit = LogRateLimit(Clock())
    for _ in range(100):
        line(limit, "%s: role %s", "liar", "prefill")

    assert line(limit, "%s: role %s", "liar", "decode") == ""
    assert line(limit, "%s: role %s", "honest", "decode") == "honest: role decode"
    assert line(limit, "%s: has gone", "liar") == "liar: has gone"


def test_audit_lines_always_pass() -> None:
    limit = LogRateLimit(Clock())
    for _ in range(1000):
        record = logging.LogRecord("x", logging.INFO, __file__, 1, "control: %s", ("pause",), None)
        record.audit = True
        assert limit.filter(record)


def test_debug_lines_always_pass() -> None:
    limit = LogRateLimit(Clock())

    assert all(line(limit, "the judge failed", level=logging.DEBUG) for _ in range(1000))


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 10)), max_size=300))
def test_memory_is_bounded_whatever_the_subjects(said: list[tuple[int, float]]) -> None:
    clock = Clock()
    limit = LogRateLimit(clock)
    for subject, seconds in said:
        clock.seconds += seconds
        for number in range(8):
            line(limit, "%s: found", subject * 8 + number)

    assert len(limit._events) <= MAX_EVENTS
