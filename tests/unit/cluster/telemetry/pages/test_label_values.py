"""The number of model, version and worker names on the page is bounded for any engine."""

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
from disagg_exporter.model import SECOND_NS

HOUR_SECONDS = 3600


def test_new_label_values_of_an_engine_are_limited_per_hour() -> None:
    values = LabelValues(128)
    shown = [
        values.label("liar", f"model-{second}", second * SECOND_NS)
        for second in range(4 * HOUR_SECONDS)
    ]

    assert len([value for value in shown if value is not None]) == 4 * PER_ENGINE


def test_engines_with_too_many_values_do_not_displace_those_of_others() -> None:
    values = LabelValues(128)
    for engine in range(63):
        for number in range(100):
            values.label(f"liar-{engine}", f"model-{engine}-{number}", number)

    assert values.label("honest", "llama", 200) == "llama"


def test_a_value_in_use_is_kept() -> None:
    values = LabelValues(128)
    for hour in range(48):
        now_ns = hour * HOUR_SECONDS * SECOND_NS
        for number in range(20):
            values.label("liar", f"model-{hour}-{number}", now_ns)
        assert values.label("honest", "llama", now_ns) == "llama"
        assert "llama" not in values.forget_unused(now_ns)


def test_values_up_to_the_kept_number_are_never_forgotten() -> None:
    """A node with a few models keeps all their values for good."""
    values = LabelValues(128)
    for number in range(KEPT_VALUES):
        values.label(f"e{number}", f"model-{number}", number)

    assert values.forget_unused(1000 * UNUSED_NS) == ()


def test_beyond_the_kept_number_the_longest_unused_values_are_forgotten() -> None:
    values = LabelValues(128)
    for number in range(KEPT_VALUES + 3):
        values.label(f"e{number}", f"model-{number}", number)

    assert values.forget_unused(UNUSED_NS - 1) == ()
    assert values.forget_unused(UNUSED_NS + 1) == ("model-0", "model-1")
    assert values.forget_unused(UNUSED_NS + 2) == ("model-2",)
    assert values.forget_unused(9 * UNUSED_NS) == ()


def test_a_value_is_truncated_and_stripped_of_control_characters() -> None:
    values = LabelValues(5)

    assert values.label("e", "a\nb\x1bcdefgh", 0) == "abc"
    assert values.label("e", "\n\0", 0) == ""


Looks = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5000), st.integers(0, 2000)), max_size=400
)


@given(Looks)
def test_memory_is_bounded_for_any_values(jobs: Looks) -> None:
    values, now_ns = LabelValues(128), 0
    for engine, number, seconds in jobs:
        now_ns += seconds * SECOND_NS
        values.label(f"e{engine}", f"m{number}", now_ns)
        values.forget_unused(now_ns)
        # Those of the last hour, and those that are kept although unused.
        assert len(values._used_ns) <= KEPT_VALUES + 41 * PER_ENGINE
    assert all(len(own) <= PER_ENGINE for own in values._by_engine.values())


def test_the_number_of_remembered_engines_is_bounded() -> None:
    values = LabelValues(128)
    for number in range(MAX_ENGINES + 5):
        values.label(f"e{number}", "m", number)

    assert len(values._by_engine) == MAX_ENGINES
