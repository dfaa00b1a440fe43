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
FORECAST = (KEY, Phase.DECODE, 300.0)


def outlook(now_seconds: float, median: float, observed: float = 100.0) -> ModelOutlook:
    """A load that always was `observed`, with the forecast `median`."""
    series = LoadSeries(now_seconds - 6000, 60.0, np.full(100, observed))
    horizon = HorizonLoad(300.0, now_seconds + 240, (0.0, median, 1e9))
    phase = PhaseOutlook(Phase.DECODE, series, (0.05, 0.5, 0.95), (horizon,), None)
    return ModelOutlook(KEY, (phase,), UndecidedTrend("short"), "tokens")


def after(rounds: int, median: float) -> PastForecasts:
    past = PastForecasts()
    for number in range(rounds):
        now_seconds = 60_000.0 + 60 * number
        here = [outlook(now_seconds, median)]
        past.settle(here, now_seconds)
        past.remember(here)
    return past


def test_the_error_is_over_forecasts_with_known_outcomes() -> None:
    """Made five minutes ahead, so that the last five outcomes are not known yet."""
    past = after(LEAST_OUTCOMES + 5, median=90.0)

    assert past.error_ratios() == {FORECAST: pytest.approx(0.1)}


def test_a_back_test_stands_in_for_too_few_outcomes() -> None:
    past = after(LEAST_OUTCOMES, median=90.0)
    assert past.error_ratios() == {}

    assert past.back_test_next([outlook(61_000.0, 90.0)])

    # The load is constant, so a back-test is exact.
    assert past.error_ratios() == {FORECAST: pytest.approx(0.0, abs=1e-9)}
    assert not past.back_test_next([outlook(61_000.0, 90.0)])


def test_unknown_outcomes_are_no_errors() -> None:
    past = after(LEAST_OUTCOMES + 5, median=90.0)
    gone = outlook(70_000.0, 90.0)
    gone.phases[0].series.values[:] = np.nan

    past.settle([gone], 70_000.0)

    assert past.error_ratios() == {FORECAST: pytest.approx(0.1)}


def test_errors_are_known_again_soon_after_the_clock_was_set_back() -> None:
    past = after(LEAST_OUTCOMES + 5, median=90.0)
    for number in range(LEAST_OUTCOMES + 5):
        now_seconds = 20_000.0 + 60 * number
        here = [outlook(now_seconds, 80.0)]
        past.settle(here, now_seconds)
        assert past.error_ratios() == {} or number == LEAST_OUTCOMES + 4
        past.remember(here)

    assert past.error_ratios() == {FORECAST: pytest.approx(0.2)}


def test_outcomes_older_than_a_day_or_of_gone_models_are_dropped() -> None:
    past = after(LEAST_OUTCOMES + 5, median=90.0)
    past.settle([outlook(60_000 + 2 * KEPT_SECONDS, 90.0)], 60_000 + 2 * KEPT_SECONDS)
    assert past.error_ratios() == {}

    past = after(LEAST_OUTCOMES + 5, median=90.0)
    past.settle([], 62_000.0)
    assert past.error_ratios() == {}
