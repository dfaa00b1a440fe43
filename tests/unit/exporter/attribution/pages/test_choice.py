"""Which source an engine is accounted by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.pages.sources import BEST_FIRST, PATIENCE_NS, choose_source
from disagg_exporter.model import Method

NOW = 100 * PATIENCE_NS


@pytest.mark.parametrize(
    ("current", "ages", "chosen"),
    [
        (Method.STEPS, {}, Method.STEPS),
        (Method.PAGE, {Method.STEPS: 0, Method.PAGE: 0}, Method.STEPS),
        (Method.STEPS, {Method.STEPS: PATIENCE_NS, Method.PAGE: 0}, Method.STEPS),
        (Method.STEPS, {Method.STEPS: PATIENCE_NS + 1, Method.PAGE: 0}, Method.PAGE),
        (Method.PAGE, {Method.FPM: 0, Method.ENGINE_TIMERS: 0}, Method.FPM),
        (Method.PAGE, {Method.ENGINE_TIMERS: 0, Method.PAGE: 0}, Method.ENGINE_TIMERS),
        (Method.PAGE, {Method.PAGE: PATIENCE_NS + 1, Method.ROLE: 0}, Method.ROLE),
        (Method.PAGE, {Method.PAGE: PATIENCE_NS + 1}, Method.PAGE),
    ],
)
def test_the_best_reporting_source_is_used(
    current: Method, ages: dict[Method, int], chosen: Method
) -> None:
    assert choose_source(current, {m: NOW - age for m, age in ages.items()}, NOW) is chosen


@given(
    st.sampled_from(BEST_FIRST),
    st.dictionaries(st.sampled_from(BEST_FIRST), st.integers(0, 2 * PATIENCE_NS)),
)
def test_a_choice_once_made_stands_while_nothing_changes(
    current: Method, ages: dict[Method, int]
) -> None:
    heard = {m: NOW - age for m, age in ages.items()}
    first = choose_source(current, heard, NOW)
    assert choose_source(first, heard, NOW) is first
