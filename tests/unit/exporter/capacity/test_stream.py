"""Streams whose records are processed together give the same result as one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from itertools import groupby
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.capacity.curves.curve import Curve, Point
from disagg_exporter.capacity.stream import StreamLoad, learn
from disagg_exporter.capacity.work import Inbox, RecordStretch
from disagg_exporter.model import Step, StepTotals, StreamKey
from disagg_exporter.steps.rows import rows_of
from support.accounting import StepReporter, ns
from support.plain_stream import PlainStream


class ArrivedMessage(NamedTuple):
    """A message as it arrives; `record`: it is a step's."""

    key: StreamKey
    step: Step
    record: bool
    overlapped: bool
    alone: bool


class Seen(NamedTuple):
    """The state of a stream at the end of a second."""

    times_ns: tuple[int, int, int]
    gap_seconds: float | None
    sums: tuple[float, ...]


# Curves of each stream: one of prefill, one of decode.
Curves = defaultdict[StreamKey, tuple[Curve, Curve]]


def work(**counts: object) -> dict[str, object]:
    return counts


WORK = st.sampled_from(
    [
        *[work(generation_requests=batch, generation_tokens=batch) for batch in (1, 2, 5, 6, 40)],
        work(),
        work(context_requests=1, context_tokens=9),
        work(context_requests=2, context_tokens=30, computed_tokens=39),
        work(context_requests=1, context_tokens=30, computed_tokens=500),
        work(context_requests=1, context_tokens=9, generation_requests=3, generation_tokens=3),
        work(context_requests=1, context_tokens=9, generation_requests=4, generation_tokens=4),
        work(context_requests=2, context_tokens=2, external_tokens=70),
        work(context_requests=1, context_tokens=1, external_tokens=7, generation_requests=2),
        work(encoder_inputs=1),
        work(encoder_inputs=1, context_requests=1, context_tokens=20),
        work(encoder_inputs=1, generation_requests=2, generation_tokens=2),
        work(dummy=True, context_tokens=1, context_requests=1),
        work(generation_requests=2, generation_tokens=2, preemptions=1),
    ]
)
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 8 + ["lose", "twice", "anew", "beat", "beat", "flag", "look"]),
        st.integers(0, 1),  # which stream
        st.sampled_from([0.0, 0.001, 0.01, 0.3]),  # how much later than the message before
        st.sampled_from([0.0, 0.001, 0.02, 1.0]),  # elapsed
        WORK,
        st.sampled_from([(0, 0), (0, 0), (3, 0), (0, 1), (3, 2)]),  # running, waiting
        st.sampled_from([0.0, 0.25, 0.9]),  # KV cache in use
        st.sampled_from([0, 0, 0, 1, 4]),  # how many messages overtake it
        st.booleans(),  # whether it arrives alone
    ),
    min_size=5,
    max_size=60,
)


def arrivals(messages: Iterable[tuple[Any, ...]]) -> Iterator[list[ArrivedMessage]]:
    """Yield what arrives from call to call."""
    tellers = (StepReporter(pid=1), StepReporter(pid=2))
    held: list[tuple[int, list[ArrivedMessage]]] = []
    now, overlapped = 1.0, False
    received: list[ArrivedMessage] = []
    for kind, whose, later, elapsed, counts, state, kv, overtaken, alone in messages:
        now += later
        teller = tellers[whose]
        told = {"running": state[0], "waiting": state[1], "kv_usage_ratio": kv}
        overlapped ^= kind == "flag"
        some = []
        if kind == "beat":
            beat = teller.beat(now)._replace(**told)
            some = [ArrivedMessage(teller.key, beat, record=False, overlapped=False, alone=True)]
        elif kind not in ("look", "flag"):
            step = teller.step(now, elapsed, **counts, **told)
            if kind == "anew":
                step = step._replace(totals=StepTotals())
            one = ArrivedMessage(teller.key, step, True, overlapped, alone)
            some = [one] * {"lose": 0, "twice": 2}.get(kind, 1)
        held = [(left - 1, those) for left, those in held]
        held.append((overtaken, some))
        received += [one for left, those in held if left <= 0 for one in those]
        held = [(left, those) for left, those in held if left > 0]
        if kind == "look":
            yield received
            received = []
    yield received


def plainly(
    seconds: Iterable[list[ArrivedMessage]],
) -> Iterator[tuple[list[Seen], list[list[Point]]]]:
    """Yield the state second by second, with each message processed alone."""
    curves: Curves = defaultdict(lambda: (Curve(), Curve()))
    streams: dict[StreamKey, PlainStream] = {}
    for second, messages in enumerate(seconds):
        for one in messages:
            stream = streams.setdefault(one.key, PlainStream(*curves[one.key]))
            if one.record:
                stream.take(one.step, overlapped=one.overlapped)
            else:
                stream.beat(one.step)
        yield seen(streams, curves, second)


def together(
    seconds: Iterable[list[ArrivedMessage]],
) -> Iterator[tuple[list[Seen], list[list[Point]]]]:
    """Yield the same of streams whose messages are queued, many of them as rows."""
    curves: Curves = defaultdict(lambda: (Curve(), Curve()))
    streams: dict[StreamKey, StreamLoad] = {}
    inbox = Inbox()
    for second, messages in enumerate(seconds):
        for (key, record, overlapped, alone), some in groupby(
            messages, key=lambda one: (one.key, one.record, one.overlapped, one.alone)
        ):
            steps = [one.step for one in some]
            if record and not alone:
                inbox.steps(key, rows_of(steps), overlapped=overlapped)
                continue
            for step in steps:
                if record:
                    inbox.step(key, step, overlapped=overlapped)
                else:
                    inbox.heartbeat(key, step)
        stretches: list[tuple[StreamLoad, RecordStretch]] = []
        for key, told in inbox.take():
            stream = streams.setdefault(key, StreamLoad(*curves[key]))
            stretches += [(stream, stretch) for stretch in stream.ingest(told)]
        learn(stretches)
        yield seen(streams, curves, second)


def seen(
    streams: dict[StreamKey, StreamLoad] | dict[StreamKey, PlainStream],
    curves: Curves,
    second: int,
) -> tuple[list[Seen], list[list[Point]]]:
    shown = []
    for _, stream in sorted(streams.items()):
        stream.end_second(ns(second))
        times = stream.mark_ns, stream.received_ns, stream.recorded_ns
        shown.append(Seen(times, stream.gap_seconds, astuple(stream.window.total)))
    return shown, [
        list(curve.points(ns(second))) for _, both in sorted(curves.items()) for curve in both
    ]


def assert_equal(messages: list[tuple[Any, ...]]) -> None:
    """Up to rounding: sums are added in another order."""
    pairs = zip(together(arrivals(messages)), plainly(arrivals(messages)), strict=True)
    for (shown, curves), (plain, plain_curves) in pairs:
        assert [one.times_ns for one in shown] == [one.times_ns for one in plain]
        for one, other in zip(shown, plain, strict=True):
            assert one.gap_seconds == pytest.approx(other.gap_seconds, abs=1e-12)
            assert one.sums == pytest.approx(other.sums, rel=1e-9, abs=1e-3)
        for points, plain_points in zip(curves, plain_curves, strict=True):
            assert [(p.samples, p.full) for p in points] == [
                (p.samples, p.full) for p in plain_points
            ]
            for point, plain_point in zip(points, plain_points, strict=True):
                assert tuple(point) == pytest.approx(tuple(plain_point), rel=1e-9, abs=1e-9)


@given(MESSAGES)
def test_any_messages_processed_together_match_one_by_one(messages: list[tuple[Any, ...]]) -> None:
    """Two streams; lost, late and repeated records, totals that fall, heartbeats, a flag."""
    assert_equal(messages)


def test_a_busy_stream_processed_together_matches_one_by_one() -> None:
    """Thousands of records, some of prompts in chunks, some lost, late or with heartbeats."""
    kinds = {3: "lose", 57: "beat", 91: "twice"}
    works: list[dict[str, object]] = [
        work(generation_requests=20 + n, generation_tokens=20 + n) for n in range(7)
    ]
    works.append(work(context_requests=1, context_tokens=400, computed_tokens=0))
    works.append(work(context_requests=2, context_tokens=200, computed_tokens=250))
    works.append(work(context_requests=1, context_tokens=300, computed_tokens=1100))
    works.append(work(context_requests=3, context_tokens=3, external_tokens=99))
    messages = [
        (
            # Between two chunks of a prompt, of which one ends.
            "look" if number % 1518 == 16 else kinds.get(number % 100, "step"),
            number % 2,
            0.004,
            0.003 + number % 11 * 1e-4,
            works[number // 2 % len(works)],
            (number % 400 < 390, number % 60 < 2),
            0.5,
            2 if number % 70 == 0 else 0,
            number % 5 == 0,
        )
        for number in range(12_000)
    ]

    assert_equal(messages)


@pytest.mark.parametrize("t_ns", [-(2**63), -1, 2**62])
def test_an_impossible_timestamp_makes_no_negative_time(t_ns: int) -> None:
    """For a stream that begins with such a record, and for one that continues with it."""
    key = StreamKey("engine", 1, 1, 0)
    steps = [Step(ns(1), 0, 1), Step(t_ns, 0, 2), Step(ns(2), 0, 3), Step(ns(3), 0, 4)]
    for begins in (0, 1):
        inbox, stream = Inbox(), StreamLoad(Curve(), Curve())
        inbox.steps(key, rows_of(steps[begins:]), overlapped=False)
        for _, told in inbox.take():
            learn((stream, stretch) for stretch in stream.ingest(told))
        stream.end_second(ns(4))

        assert min(astuple(stream.window.total)) >= 0
        assert stream.mark_ns == max(t_ns, ns(3))


def test_an_empty_packet_changes_nothing() -> None:
    inbox = Inbox()

    inbox.steps(StreamKey("engine", 1, 1, 0), rows_of([]), overlapped=False)

    assert list(inbox.take()) == []
