"""The incremental timeline gives the same results as one that recomputes everything."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.intervals.timeline import REASONS, WORK, WorkShares
from disagg_exporter.accounting.timelines.step_timeline import StepTimeline
from disagg_exporter.model import Phase, Step
from support.accounting import StepReporter, ns
from support.plain_timeline import Piece, PlainTimeline

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 6 + ["lose", "beat", "beat", "overlap", "end"]),
        st.integers(0, 1),  # whose
        st.sampled_from([0.0, 0.01, 0.2, 1.0]),  # how much later than the message before
        st.sampled_from([0.0, 0.001, 0.3, 1.0, 4.0]),  # elapsed
        st.integers(0, 3),  # context tokens
        st.integers(0, 2),  # generated tokens
        st.integers(0, 1),  # running
        st.sampled_from([0, 0, 0, 1, 3]),  # how many messages overtake it
    ),
    min_size=10,
    max_size=80,
)


def _played(
    timeline: StepTimeline | PlainTimeline, messages: list[tuple[Any, ...]], look_every: int = 1
) -> list[Any]:
    """Tell a timeline everything; return what could be seen of it at each look."""
    tellers = (StepReporter(pid=1), StepReporter(pid=2))
    held: list[tuple[int, Any]] = []
    now, overlapped, seen = 0.0, False, []
    for number, message in enumerate(messages):
        kind, whose, later, elapsed, context, generated, running, overtaken = message
        now += later
        reporter = tellers[whose]
        step: Step = reporter.beat(now)
        if kind in ("step", "lose"):
            step = reporter.step(
                now,
                elapsed,
                context_requests=min(context, 1),
                context_tokens=context,
                computed_tokens=context,
                generation_requests=generated,
                generation_tokens=generated,
                running=running,
            )
        held = [(left - 1, told) for left, told in held]
        held.append((overtaken, (kind, reporter, step)))
        overlapped ^= kind == "overlap"
        for _, (what, who, told) in (one for one in held if one[0] <= 0):
            _tell(timeline, what, who, told, overlapped, ns(now))
        held = [one for one in held if one[0] > 0]
        if number % look_every == 0:
            timeline.advance(ns(now))
            seen.append(
                (timeline.mark_ns, _pieces(timeline), list(timeline.overflows), _tokens(timeline))
            )
            seen.append((timeline.lost_records, timeline.late_records, timeline.work_pending))
    return seen


def _pieces(timeline: StepTimeline | PlainTimeline) -> list[Piece]:
    if isinstance(timeline, PlainTimeline):
        return list(timeline.pieces)
    return [
        Piece(start, end, WorkShares(prefill, dummy) if code == WORK else None, REASONS[code])
        for start, end, prefill, dummy, code in timeline.timeline.pieces.tolist()
    ]


def _tokens(timeline: StepTimeline | PlainTimeline) -> dict[Phase, int]:
    if isinstance(timeline, PlainTimeline):
        return dict(timeline.tokens)
    return {
        Phase.PREFILL: sum(int(told.prefill.sum()) for told in timeline.tokens),
        Phase.DECODE: sum(int(told.decode.sum()) for told in timeline.tokens),
    }


def _tell(
    timeline: StepTimeline | PlainTimeline,
    kind: str,
    reporter: StepReporter,
    step: Step,
    overlapped: bool,
    now_ns: int,
) -> None:
    match kind:
        case "step":
            timeline.add(reporter.key, step, now_ns=now_ns)
        case "beat" | "overlap":
            timeline.heartbeat(reporter.key, step, overlapped=overlapped, now_ns=now_ns)
        case "end":
            timeline.end(step.t_ns)
        case _:
            pass  # lost on its way


@given(MESSAGES, st.sampled_from([0.01, 0.3, 2.0]))
def test_any_messages_give_the_same_results_as_recomputation(
    messages: list[tuple[Any, ...]], delay: float
) -> None:
    """Two streams, lost and late records, heartbeats that overtake, a flag that changes, ends."""
    rules = Rules(packing_delay_ns=ns(delay))

    seen = _played(StepTimeline(0, rules), messages)

    assert seen == _played(PlainTimeline(0, rules), messages)


def test_a_busy_stream_gives_the_same_results_as_recomputation() -> None:
    """A hundred steps a second, every tenth lost and every seventh out of order."""
    rules = Rules()
    messages = [
        (
            "lose" if number % 10 == 3 else "beat" if number % 97 == 0 else "step",
            0,
            0.01,
            0.012 if number % 50 else 0.5,
            number % 4 == 0,
            2,
            number % 200 != 0,
            3 if number % 7 == 0 else 0,
        )
        for number in range(3000)
    ]

    seen = _played(StepTimeline(0, rules), messages, look_every=100)

    assert seen == _played(PlainTimeline(0, rules), messages, look_every=100)
