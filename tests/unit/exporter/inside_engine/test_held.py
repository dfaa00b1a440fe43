"""How long steps held their devices where the engine's own figure is only a wait.

The times are those of an 8B model on an H200 under vLLM 0.26: a decode step takes 6 ms, of which
1 ms is launching; a step with a prompt of 1,000 tokens takes 27 ms, of which 14 ms are launching.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.inside_engine.disagg_steps.counting import Facts
from disagg_exporter.inside_engine.disagg_steps.held import Held, next_held

MS = 1_000_000
DECODE = (6.0, 1.0)
PROMPT = (27.0, 14.0)
_LOOKING = 0.04


class Event(NamedTuple):
    """A record: when it was made and how long the engine waited before it, in milliseconds."""

    t: float
    wait: float
    prompt: bool = False
    running: int = 1
    counted: bool = True
    prompt_ms: float = 0.0
    written: int = 1


def held_ms(events: list[Event], *, late: bool = True, begun: float = 0.0) -> list[float]:
    """Return the held time of each step; the engine rests until the first begins."""
    known, rested, found = Held(since_ns=round(begun * MS)), True, []
    for event in events:
        facts = Facts(
            elapsed_ns=round(event.wait * MS),
            context_tokens=1000 * event.prompt,
            generation_tokens=event.written,
            running=event.running,
        )
        held_ns, known = next_held(
            known,
            round(event.t * MS),
            facts,
            rested=rested,
            counted=event.counted,
            late=late,
            prompt_ns=round(event.prompt_ms * MS),
        )
        found.append(held_ns / MS)
        rested = not event.running
    return found


def launched_ahead(kinds: str) -> tuple[list[Event], list[float]]:
    """Play an engine that launches each step before it waits for the one before it.

    `kinds`: D decodes, P has a prompt, too. Returns the records, and how long each step really
    took: the GPU begins a step when it is launched and the one before has ended.
    """
    records, took = [], []
    now = ended = 0.0
    costs = [DECODE if kind == "D" else PROMPT for kind in kinds]
    waiting: tuple[float, bool] | None = None
    for (length, launch), kind in zip(costs, kinds, strict=True):
        began = max(now, ended)
        now += launch
        if waiting is not None:
            records.append(_waited(now, *waiting))
            now = records[-1].t
        end = max(began + length, now)
        took.append(end - (ended if took else 0.0))
        ended = end
        waiting = ended, kind == "P"
    assert waiting is not None
    records.append(_waited(now, *waiting))
    return records, took


def _waited(now: float, end: float, prompt: bool) -> Event:
    return Event(max(now + _LOOKING, end), max(_LOOKING, end - now), prompt)


def test_time_for_which_the_next_launch_delays_a_record_is_the_next_steps() -> None:
    records, took = launched_ahead("DDDDPDDDD")

    naive = [b.t - a.t for a, b in pairwise(records)]
    held = held_ms(records)

    assert naive[3] < PROMPT[0] - 7
    assert max(abs(a - b) for a, b in zip(held[1:], took[1:], strict=True)) < 0.2


def test_a_step_that_was_waited_for_lasts_from_record_to_record() -> None:
    records = [Event(10, 5), Event(17, 4), Event(30, 4, prompt=True), Event(39, 6)]

    assert held_ms(records)[1:] == [7, 13, 9]


def test_before_any_decode_step_is_known_a_late_record_is_taken_as_it_is() -> None:
    assert held_ms([Event(27, 13, prompt=True), Event(41, 0.04), Event(54, 13, prompt=True)]) == [
        *(13, 14, 13)
    ]


def test_what_delays_the_record_of_a_prompt_is_the_next_steps() -> None:
    """Known from the decode steps after prompts that are shorter than usual."""
    records, t = [Event(0, 4)], 0.0
    for _ in range(20):
        for wait, length, late in ((4, 6, 0), (4, 6, 0), (20, 30, 2)):
            t += length
            records.append(Event(t + late, wait, prompt=length > 6))

    held = held_ms(records)

    # Of each three: a decode step after a prompt, another, and a prompt.
    assert held[1:7] == [6, 6, 32, 4, 6, 30]
    assert held[-6:] == [6, 6, 30, 6, 6, 30]


def test_a_decode_step_that_is_longer_after_a_prompt_makes_no_record_late() -> None:
    records, t = [Event(0, 4)], 0.0
    for _ in range(20):
        for wait, length in ((4, 6), (20, 30), (4, 8)):
            t += length
            records.append(Event(t, wait, prompt=length == 30))

    assert held_ms(records)[-3:] == [6, 30, 8]


def test_a_prompt_that_was_waited_for_is_at_least_as_long_as_the_wait() -> None:
    late = [Event(0, 4), Event(6, 4), Event(12, 4), Event(40, 20, prompt=True), Event(41, 0.5)]

    assert held_ms([*late, Event(47, 4), Event(57, 9, prompt=True)])[-1] == 9


def test_a_step_is_never_longer_than_until_its_record() -> None:
    records = [Event(6 * n, 4) for n in range(1, 9)] + [Event(50, 0.04), Event(77, 20, prompt=True)]

    assert held_ms(records)[-2:] == [2, 27]


def test_steps_that_wrote_nothing_are_no_decode_steps() -> None:
    """Such as those that a data-parallel rank takes only because others have work."""
    idle = [Event(6 * n, 4, written=0) for n in range(1, 5)]

    assert held_ms([*idle, Event(40, 0.04), Event(54, 0.04, written=0)])[-2:] == [16, 14]


def test_without_async_scheduling_no_record_is_late() -> None:
    """There the engine launches a step itself and then waits: a short wait is a long launch."""
    records = [Event(6 * n, 4) for n in range(1, 5)] + [Event(40, 0.04), Event(54, 0.04)]

    assert held_ms(records, late=False)[-2:] == [16, 14]


def test_a_prompt_after_a_rest_began_when_it_was_scheduled() -> None:
    assert held_ms([Event(500, 2, prompt=True, running=0, prompt_ms=27)]) == [27]


def test_the_launch_of_a_first_prompt_is_known_from_the_one_before() -> None:
    records = [
        Event(500, 2, prompt=True, running=0, prompt_ms=27),
        Event(900, 80, prompt=True),
    ]

    assert held_ms(records) == [27, 105]


def test_a_prompt_in_pieces_is_as_long_as_from_its_scheduling_to_its_first_token() -> None:
    pieces = [Event(500, 2, prompt=True), Event(520, 9, prompt=True)]

    first = [*pieces, Event(540, 9, prompt=True, running=0, prompt_ms=65)]
    second = [
        Event(1000, 2, prompt=True),
        Event(1020, 9, prompt=True),
        Event(1040, 9, prompt=True, running=0, prompt_ms=62),
    ]

    held, again = held_ms(first), held_ms([*first, *second])

    assert held == [2, 20, 20 + 65 - 42]
    # The first piece is as long as was learned, and the last corrects that by the rest.
    assert again[3:] == [2 + 23, 20, 20 - 3]


def test_a_prompt_that_is_given_up_takes_nothing_from_the_one_after_it() -> None:
    given_up = [Event(500, 90, prompt=True), Event(600, 90, prompt=True)]

    held = held_ms([*given_up, Event(640, 30, prompt=True, running=0, prompt_ms=40)])

    assert held == [90, 100, 40]


def test_a_first_step_is_no_longer_than_the_rest_before_it() -> None:
    records = [
        Event(500, 2, prompt=True, running=0, prompt_ms=27),
        Event(520, 2, prompt=True, running=0, prompt_ms=27),
        Event(521, 2, prompt=True, running=0),
    ]

    assert held_ms(records) == [27, 20, 2]


def test_a_first_decode_step_lasts_its_wait() -> None:
    assert held_ms([Event(500, 2, running=0, prompt_ms=27)]) == [2]


@given(
    st.lists(
        st.builds(
            Event,
            t=st.floats(0.01, 40),
            wait=st.sampled_from([0.03, 5.0]),
            prompt=st.booleans(),
            running=st.just(1),
            counted=st.sampled_from([True, True, False]),
            prompt_ms=st.just(0.0),
            written=st.integers(0, 1),
        ),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_steps_of_a_busy_stretch_hold_all_of_its_time_and_no_more(
    steps: list[Event], late: bool
) -> None:
    """But for the last, whose own end may be before its record."""
    t = 1_000.0
    records = [Event(t, 1.0)]
    for step in steps:
        t += step.t
        records.append(step._replace(t=t))

    held = held_ms(records, late=late)[1:]

    assert all(each >= 0 for each in held)
    assert sum(held) <= t - 1_000.0 + 1e-6
    last = records[-1]
    if last.counted and last.written and not last.prompt and (last.wait > 1 or not late):
        assert abs(sum(held) - (t - 1_000.0)) < 1e-3
