from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.usual_pace import UsualPace
from disagg_exporter.model import ExpectedSteps


def _follow(usual: UsualPace, pace_ratio: float, seconds: float) -> None:
    usual.count(0, seconds, pace_ratio * seconds)


def _warm() -> UsualPace:
    usual = UsualPace()
    for _ in range(600):
        usual.count(0, 0.5, 0.5)
    return usual


def test_the_usual_pace_starts_as_the_mean_of_the_first_two_minutes() -> None:
    usual = UsualPace()
    _follow(usual, 1.4, 60.0)
    _follow(usual, 1.2, 60.0)

    assert usual.ratio == pytest.approx(1.3)


def test_after_half_an_hour_the_usual_pace_follows_under_a_tenth_of_a_slowdown() -> None:
    usual = _warm()
    for _ in range(1800):
        _follow(usual, 1.5, 1.0)

    assert usual.ratio == pytest.approx(1.04, abs=0.003)


def test_after_a_day_the_usual_pace_includes_a_slowdown() -> None:
    usual = _warm()
    for _ in range(24 * 60):
        _follow(usual, 1.5, 60.0)

    assert usual.ratio == pytest.approx(1.5, abs=0.02)


@given(st.lists(st.tuples(st.floats(0.25, 4.0), st.floats(1e-9, 1e6)), min_size=1, max_size=50))
def test_the_usual_pace_stays_within_reported_ratios_and_survives_a_restore(
    told: list[tuple[float, float]],
) -> None:
    usual = UsualPace()
    for ratio, seconds in told[:-1]:
        _follow(usual, ratio, seconds)
    restored = UsualPace()
    restored.restore(usual.save())
    for each in (usual, restored):
        _follow(each, *told[-1])

    assert restored.ratio == usual.ratio
    ratios = [ratio for ratio, _ in told]
    assert min(ratios) - 1e-9 <= usual.ratio <= max(ratios) + 1e-9


def test_one_hung_step_does_not_move_the_usual_pace() -> None:
    usual = _warm()
    usual.count(0, 1.0, 1000.0)

    assert usual.ratio == pytest.approx(1.0, abs=0.001)


def test_a_step_that_hangs_before_any_other_is_not_the_usual_pace() -> None:
    usual = UsualPace()
    usual.count(0, 0.01, 600.0)
    usual.take()
    for _ in range(6000):
        usual.count(0, 0.01, 0.01)

    assert usual.ratio == pytest.approx(1.0, abs=0.01)
    assert sum(usual.take().expected_ns) == pytest.approx(60e9, rel=0.02)


def test_expected_steps_are_scaled_by_the_usual_pace_and_returned_once() -> None:
    usual = _warm()
    usual.take()
    usual.count(0, 1.0, 2.0)
    usual.count(2, 0.5, 0.25)
    usual.count(0, 1.0, 1.0)

    expected_ns, taken_ns = usual.take()
    assert expected_ns == pytest.approx((2e9, 0, 0.5e9), rel=0.001)
    assert taken_ns == (3_000_000_000, 0, 250_000_000)
    assert usual.take() == ExpectedSteps()
