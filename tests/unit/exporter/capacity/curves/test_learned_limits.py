"""The saved step times from which an engine's limits are derived."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.capacity.curves.curve import FORGET_NS, Curve, LearnedClass, LearnedLimits
from disagg_exporter.capacity.engine import PageCapacity, StepCapacity

NOW_NS = 10**15
STEPS = st.lists(
    st.tuples(st.floats(1.0, 1e5), st.floats(1e-4, 2.0), st.booleans(), st.integers(0, 10**12)),
    max_size=200,
)


def curve_of(steps: list[tuple[float, float, bool, int]]) -> Curve:
    curve = Curve()
    for size, seconds, full, ago_ns in steps:
        curve.add(size, seconds, NOW_NS - ago_ns, full=full)
    return curve


@given(STEPS, STEPS, st.floats(0.0, 0.02))
def test_restored_limits_are_the_same_at_once(
    prompts: list[tuple[float, float, bool, int]],
    batches: list[tuple[float, float, bool, int]],
    gap_seconds: float,
) -> None:
    saved = LearnedLimits(
        curve_of(prompts).save(NOW_NS), curve_of(batches).save(NOW_NS), gap_seconds
    )
    first, second = StepCapacity(0.05), StepCapacity(0.05)
    first.restore(saved, NOW_NS)

    again = first.save(NOW_NS)
    second.restore(again, NOW_NS + 5)

    assert again == saved
    assert second.save(NOW_NS + 5) == saved
    assert (second.prefill, second.decode) == (first.prefill, first.decode)
    assert [p.size for p in curve_of(prompts).points(NOW_NS)] == [
        p.size for p in restored(saved).points(NOW_NS)
    ]


def restored(saved: LearnedLimits) -> Curve:
    curve = Curve()
    curve.restore(saved.prefill, NOW_NS)
    return curve


def test_limits_learned_from_pages_are_restored_at_once() -> None:
    saved = LearnedLimits(
        page_decode=curve_of([(20.0, 0.02, False, 0)] * 30).save(NOW_NS),
        page_rates=(900.0, 1000.0, 1100.0),
    )
    page = PageCapacity(0.05)

    page.restore(saved, NOW_NS)

    assert page.save(NOW_NS) == saved
    assert page.decode is not None
    assert page.prefill is not None
    assert page.prefill.tokens_per_second == pytest.approx(900.0)


def test_saved_steps_age_by_the_time_between_daemons() -> None:
    """What was known 5 hours before a daemon's end is forgotten 2 hours after it."""
    saved = LearnedLimits(curve_of([(20.0, 0.02, False, 5 * 3600 * 10**9)]).save(NOW_NS))
    later = saved.older(2 * 3600 * 10**9)

    assert [p.size for p in restored(saved).points(NOW_NS)] == [20.0]
    assert restored(later).points(NOW_NS) == ()
    assert later.prefill[0].age_ns > FORGET_NS


@pytest.mark.parametrize(
    ("number", "age_ns", "samples"),
    [
        (0, 0, ()),
        (0, 0, ((1.0, 0.1, False),) * 65),
        (97, 0, ((1.0, 0.1, False),)),
        (0, -1, ((1.0, 0.1, False),)),
        (0, 0, ((0.5, 0.1, False),)),
        (0, 0, ((1.0, 0.0, False),)),
        (0, 0, ((math.nan, 0.1, False),)),
        (0, 0, ((1.0, math.inf, False),)),
    ],
)
def test_invalid_classes_of_steps_are_refused(
    number: int, age_ns: int, samples: tuple[tuple[float, float, bool], ...]
) -> None:
    with pytest.raises(ValueError, match=r"expected"):
        LearnedClass(number, age_ns, samples)


def test_a_class_occurs_in_a_curve_once() -> None:
    known = LearnedClass(0, 0, ((1.0, 0.1, False),))

    with pytest.raises(ValueError, match="twice"):
        LearnedLimits(decode=(known, known))
