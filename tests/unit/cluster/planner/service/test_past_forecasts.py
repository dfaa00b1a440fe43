from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.forecast.trend import UndecidedTrend
from disagg_cluster.planner.history.load_history import LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.outlook.model_outlook import (
    HorizonLoad,
    ModelOutlook,
    PhaseOutlook,
)
from disagg_cluster.planner.service.past_forecasts import (
    KEPT_SECONDS,
    LEAST_OUTCOMES,
    PastForecasts,
)
from disagg_exporter.model import Phase

KEY = LoadKey("", "llama")
PLACE = (KEY, Phase.DECODE, 300.0)


def outlook(now_seconds: float, said: float, came: float = 100.0) -> ModelOutlook:
    """A load that always was `came`, and of which `said` is forecast."""
    series = LoadSeries(now_seconds - 6000, 60.0, np.full(100, came))
    horizon = HorizonLoad(300.0, now_seconds + 240, (0.0, said, 1e9))
    phase = PhaseOutlook(Phase.DECODE, series, (0.05, 0.5, 0.95), (horizon,), None)
    return ModelOutlook(KEY, (phase,), UndecidedTrend("short"), "tokens")


def after(rounds: int, said: float) -> PastForecasts:
    past = PastForecasts()
    for number in range(rounds):
        now_seconds = 60_000.0 + 60 * number
        here = [outlook(now_seconds, said)]
        past.settle(here, now_seconds)
        past.remember(here)
    return past


def test_the_error_is_that_of_forecasts_that_have_come_true() -> None:
    """Said five minutes ahead, so that the last five of them are still to come."""
    past = after(LEAST_OUTCOMES + 5, said=90.0)

    assert past.error_ratios() == {PLACE: pytest.approx(0.1)}


def test_a_few_outcomes_judge_nobody_and_a_back_test_stands_in() -> None:
    past = after(LEAST_OUTCOMES, said=90.0)
    assert past.error_ratios() == {}

    assert past.test_next([outlook(61_000.0, 90.0)])

    # The load is constant: forecast again from its past it is exact.
    assert past.error_ratios() == {PLACE: pytest.approx(0.0, abs=1e-9)}
    assert not past.test_next([outlook(61_000.0, 90.0)])


def test_outcomes_that_nobody_knows_are_no_errors() -> None:
    past = after(LEAST_OUTCOMES + 5, said=90.0)
    gone = outlook(70_000.0, 90.0)
    gone.phases[0].series.values[:] = np.nan

    past.settle([gone], 70_000.0)

    assert past.error_ratios() == {PLACE: pytest.approx(0.1)}


def test_what_is_older_than_a_day_or_of_a_model_that_is_gone_is_forgotten() -> None:
    past = after(LEAST_OUTCOMES + 5, said=90.0)
    past.settle([outlook(60_000 + 2 * KEPT_SECONDS, 90.0)], 60_000 + 2 * KEPT_SECONDS)
    assert past.error_ratios() == {}

    past = after(LEAST_OUTCOMES + 5, said=90.0)
    past.settle([], 62_000.0)
    assert past.error_ratios() == {}
