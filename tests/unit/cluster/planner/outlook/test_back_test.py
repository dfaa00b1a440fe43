from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.outlook.back_test import HorizonScore, back_test
from disagg_cluster.planner.outlook.model_outlook import UndecidedHorizon, UndecidedReason


def series(values: np.typing.ArrayLike) -> LoadSeries:
    return LoadSeries(0.0, 60.0, np.asarray(values, dtype=np.float64))


def test_for_pure_noise_bands_hold_and_the_last_value_is_worse() -> None:
    values = 100 + np.random.default_rng(1).normal(0, 10, 3000)

    (score,) = back_test(series(values), [3600.0], origins=20)

    assert isinstance(score, HorizonScore)
    assert score.origins == 20
    # Mean absolute deviation of a normal: 0.8 standard deviations; of a difference: 1.13.
    assert score.error_ratio == pytest.approx(0.08, abs=0.01)
    assert score.last_value_error_ratio == pytest.approx(0.113, abs=0.03)
    assert score.band == pytest.approx(0.9)
    assert score.covered_ratio == pytest.approx(0.9, abs=0.05)
    assert score.pinball_ratio is not None
    assert score.pinball_ratio < 1


def test_later_load_does_not_change_a_back_test_forecast() -> None:
    """A jump in the last tenth is not known at any moment before it."""
    values = np.full(1000, 10.0)
    values[900:] = 1000.0

    (score,) = back_test(series(values), [300.0], origins=50)

    assert isinstance(score, HorizonScore)
    assert score.covered_ratio < 1
    assert score.error_ratio is not None
    assert score.error_ratio > 0


def test_a_constant_load_is_exact_and_has_no_pinball_ratio() -> None:
    (score,) = back_test(series(np.full(500, 7.0)), [300.0], origins=8)

    assert isinstance(score, HorizonScore)
    assert score.error_ratio == pytest.approx(0.0, abs=1e-9)
    assert score.last_value_error_ratio == 0.0
    assert score.pinball_ratio is None


@pytest.mark.parametrize(
    "values",
    [np.empty(0), np.full(100, np.nan), np.ones(3), np.ones(25)],
    ids=["empty", "unknown", "three", "short"],
)
def test_without_outcomes_it_is_undecided(values: np.typing.NDArray[np.float64]) -> None:
    (score,) = back_test(series(values), [3600.0])

    assert isinstance(score, UndecidedHorizon)
    assert "a back-test needs 4" in score.why


def test_gaps_in_outcomes_are_no_errors() -> None:
    values = np.full(600, 5.0)
    values[350:400] = np.nan

    (score,) = back_test(series(values), [300.0], origins=30)

    assert isinstance(score, HorizonScore)
    assert score.error_ratio == pytest.approx(0.0, abs=1e-9)
    assert score.covered_ratio == 1.0


@pytest.mark.parametrize("horizons", [[300.0, 900.0], [300.0, 3600.0]], ids=["all", "some"])
def test_a_horizon_shorter_than_a_step_is_undecided(horizons: list[float]) -> None:
    hourly = LoadSeries(0.0, 3600.0, np.random.default_rng(2).normal(100, 10, 300))

    scores = back_test(hourly, horizons, origins=6)

    for horizon, score in zip(horizons, scores, strict=True):
        if horizon < 3600:
            assert isinstance(score, UndecidedHorizon)
            assert score.reason is UndecidedReason.LONG_STEPS
        else:
            assert isinstance(score, HorizonScore)
