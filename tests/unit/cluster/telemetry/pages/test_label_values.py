"""What engines call their models, versions and workers fills no page, whatever they do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.telemetry.pages.label_values import (
    KEPT_VALUES,
    MAX_ENGINES,
    PER_ENGINE,
    UNUSED_NS,
    LabelValues,
)

SECOND_NS = 1_000_000_000
HOUR_SECONDS = 3600


def test_an_engine_with_a_new_value_each_second_gets_a_few_an_hour() -> None:
    values = LabelValues(128)
    shown = [
        values.label("liar", f"model-{second}", second * SECOND_NS)
        for second in range(4 * HOUR_SECONDS)
    ]

    assert len([value for value in shown if value is not None]) == 4 * PER_ENGINE


def test_engines_that_lie_take_nothing_from_those_that_do_not() -> None:
    values = LabelValues(128)
    for engine in range(63):
        for number in range(100):
            values.label(f"liar-{engine}", f"model-{engine}-{number}", number)

    assert values.label("honest", "llama", 200) == "llama"


def test_an_engine_keeps_the_value_that_it_goes_on_using() -> None:
    values = LabelValues(128)
    for hour in range(48):
        now_ns = hour * HOUR_SECONDS * SECOND_NS
        for number in range(20):
            values.label("liar", f"model-{hour}-{number}", now_ns)
        assert values.label("honest", "llama", now_ns) == "llama"
        assert "llama" not in values.forget_unused(now_ns)


def test_values_that_are_few_are_never_forgotten() -> None:
    """A node with some models keeps what each of them has used, for good."""
    values = LabelValues(128)
    for number in range(KEPT_VALUES):
        values.label(f"e{number}", f"model-{number}", number)

    assert values.forget_unused(1000 * UNUSED_NS) == ()


def test_of_too_many_values_those_unused_for_longest_are_forgotten() -> None:
    values = LabelValues(128)
    for number in range(KEPT_VALUES + 3):
        values.label(f"e{number}", f"model-{number}", number)

    assert values.forget_unused(UNUSED_NS - 1) == ()
    assert values.forget_unused(UNUSED_NS + 1) == ("model-0", "model-1")
    assert values.forget_unused(UNUSED_NS + 2) == ("model-2",)
    assert values.forget_unused(9 * UNUSED_NS) == ()


def test_a_value_is_one_short_line_of_what_can_be_printed() -> None:
    values = LabelValues(5)

    assert values.label("e", "a\nb\x1bcdefgh", 0) == "abc"
    assert values.label("e", "\n\0", 0) == ""


Looks = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5000), st.integers(0, 2000)), max_size=400
)


@given(Looks)
def test_the_memory_is_bounded_whoever_says_what(jobs: Looks) -> None:
    values, now_ns = LabelValues(128), 0
    for engine, number, seconds in jobs:
        now_ns += seconds * SECOND_NS
        values.label(f"e{engine}", f"m{number}", now_ns)
        values.forget_unused(now_ns)
        # Those of the last hour, and those that are kept though nobody uses them.
        assert len(values._used_ns) <= KEPT_VALUES + 41 * PER_ENGINE
    assert all(len(own) <= PER_ENGINE for own in values._by_engine.values())


def test_engines_without_end_are_not_remembered_without_end() -> None:
    values = LabelValues(128)
    for number in range(MAX_ENGINES + 5):
        values.label(f"e{number}", "m", number)

    assert len(values._by_engine) == MAX_ENGINES
