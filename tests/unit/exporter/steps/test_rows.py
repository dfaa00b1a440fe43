from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Step, StepTotals
from disagg_exporter.steps.rows import joined, rows_of, steps_of, unfinished_tokens


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
