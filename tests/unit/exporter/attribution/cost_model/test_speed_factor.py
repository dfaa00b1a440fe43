from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.samples import SpeedFactor


def test_the_factor_stays_at_1_while_steps_take_their_predicted_time() -> None:
    pace = SpeedFactor()
    for _ in range(1000):
        pace.follow(1.0, 0.01)

    assert pace.ratio == pytest.approx(1.0)


def test_a_steady_drift_is_followed_without_a_lag() -> None:
    """A plain mean over 40 s would be 40 s behind: 1.2 where the truth is 1.24."""
    pace, now = SpeedFactor(), 1.0
    for _ in range(24_000):
        now += 1e-5
        pace.follow(now, 0.01)

    assert now == pytest.approx(1.24)
    assert pace.ratio == pytest.approx(now, abs=0.002)


def test_long_steps_move_the_factor_as_far_as_many_short_ones() -> None:
    long, short = SpeedFactor(), SpeedFactor()
    for _ in range(10):
        long.follow(1.5, 1.0)
    for _ in range(1000):
        short.follow(1.5, 0.01)

    assert long.ratio == pytest.approx(short.ratio, abs=0.01)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-9, 1e6)), max_size=50))
def test_the_factor_stays_within_bounds(told: list[tuple[float, float]]) -> None:
    pace = SpeedFactor()
    for ratio, seconds in told:
        pace.follow(ratio, seconds)

    assert 0.25 <= pace.ratio <= 4
