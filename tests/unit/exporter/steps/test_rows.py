from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Step, StepTotals
from disagg_exporter.steps.rows import (
    ends_known,
    joined,
    kinds_of,
    rows_of,
    steps_of,
    unfinished_tokens,
)


def test_joined_rows_keep_their_values() -> None:
    steps = [
        Step(n, 2 * n, n, kv_usage_ratio=n / 8, totals=StepTotals((n, 0, 0, 1))) for n in range(9)
    ]

    rows = joined([rows_of(steps[:2]), rows_of([]), rows_of(steps[2:])[::2]])

    assert steps_of(rows) == steps[:2] + steps[2::2]
    assert rows.flags.writeable


def test_joining_no_rows_gives_no_rows() -> None:
    assert steps_of(joined([])) == []


@given(
    st.lists(st.tuples(st.integers(-500, 500), st.booleans()), max_size=40),
    st.integers(0, 1000),
)
def test_unfinished_tokens_are_accumulated_and_never_negative(
    steps: list[tuple[int, bool]], before: int
) -> None:
    """Per step: 0 where a prompt ended, else max(previous + computed, 0)."""
    expected, now = [], before
    for grown, ended in steps:
        now = 0 if ended else max(now + grown, 0)
        expected.append(now)

    grown, ended = np.array([g for g, _ in steps], int), np.array([e for _, e in steps], bool)

    assert unfinished_tokens(grown, ended, before).tolist() == expected


def test_ends_are_known_of_steps_that_were_waited_for_and_of_those_that_only_decoded() -> None:
    waited, late = 5_000_000, 40_000
    prompt = {"context_requests": 1, "context_tokens": 9, "computed_tokens": 9}
    decode = {"generation_requests": 2, "generation_tokens": 2}
    rows = rows_of(
        Step(t_ns=0, elapsed_ns=wait, sequence=number, **work)
        for number, (wait, work) in enumerate(
            [(late, decode), (waited, prompt), (late, prompt), (waited, prompt), (late, decode)]
        )
    )

    assert ends_known(rows, kinds_of(rows)).tolist() == [True, True, False, False, True]


def test_without_steps_there_are_no_ends() -> None:
    rows = rows_of([])

    assert not len(ends_known(rows, kinds_of(rows)))


def stream(decode_wait_ns: int, prompt_wait_ns: int, decodes: int = 20) -> list[Step]:
    """Decode steps with a prompt after each ten."""
    found = []
    for number in range(decodes):
        work = {"generation_requests": 2, "generation_tokens": 2}
        found.append(Step(t_ns=0, elapsed_ns=decode_wait_ns, sequence=0, **work))
        if number % 10 == 9:
            prompt = {"context_requests": 1, "context_tokens": 9, "computed_tokens": 9}
            found.append(Step(t_ns=0, elapsed_ns=prompt_wait_ns, sequence=0, **prompt))
    return found


def test_all_ends_are_known_of_an_engine_that_is_no_faster_than_it_launches() -> None:
    rows = rows_of(stream(40_000, 40_000))

    assert ends_known(rows, kinds_of(rows)).all()


def test_a_few_decode_steps_do_not_show_that_an_engine_is_no_faster_than_it_launches() -> None:
    rows = rows_of(stream(40_000, 40_000, decodes=10))

    assert not ends_known(rows, kinds_of(rows)).all()


def test_whether_an_engine_waits_is_judged_stream_by_stream() -> None:
    small, large = stream(40_000, 40_000), stream(3_000_000, 40_000)
    rows = rows_of([*small, *large, *small])

    known = ends_known(rows, kinds_of(rows), [0, len(small), len(small) + len(large)])

    assert known[: len(small)].all()
    assert known[-len(small) :].all()
    assert not known[len(small) : -len(small)].all()
