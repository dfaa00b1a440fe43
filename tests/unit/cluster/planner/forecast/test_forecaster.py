from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.forecast.forecaster import SharedForecasts, forecast
from disagg_cluster.planner.forecast.load_forecast import (
    LEAST_OBSERVATIONS,
    PATH_QUANTILES,
    QUANTILES,
    LoadForecast,
    UndecidedForecast,
)
from disagg_cluster.planner.history.load_series import Floats, LoadSeries, load_series

_DAY = 144
_VALUES = st.one_of(st.just(float("nan")), st.just(0.0), st.floats(0.0, 1e9))


def made(
    values: Floats | list[float], horizon_steps: int, step_seconds: float = 600
) -> LoadForecast:
    found = forecast(
        LoadSeries(0.0, step_seconds, np.asarray(values, dtype=np.float64)), horizon_steps
    )
    assert isinstance(found, LoadForecast)
    return found


def daily(days: int, noise: float = 0.05, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    t = np.arange(days * _DAY) / _DAY
    shape: Floats = 100 * np.exp(np.sin(2 * np.pi * t)) * np.exp(rng.normal(0, noise, len(t)))
    return shape


@given(st.lists(_VALUES, min_size=40, max_size=120), st.integers(1, 20))
def test_quantiles_are_finite_ordered_and_not_negative(values: list[float], horizon: int) -> None:
    """For any load: bursts, zeros, gaps."""
    series = LoadSeries(0.0, 60.0, np.array(values))
    found = forecast(series, horizon)

    if isinstance(found, UndecidedForecast):
        assert found.why
    else:
        assert np.isfinite(found.values).all()
        assert (found.values >= 0).all()
        assert (np.diff(found.values, axis=0) >= -1e-6 * found.values.max()).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([2.0**-20, 2.0**10, 2.0**40]))
def test_forecasts_scale_with_the_unit(seed: int, unit: float) -> None:
    values = np.random.default_rng(seed).gamma(2.0, 50.0, 200)

    np.testing.assert_allclose(
        made(values * unit, 12).values, made(values, 12).values * unit, rtol=1e-4
    )


def test_a_launched_load_has_the_bands_of_one_that_was_never_idle() -> None:
    past = daily(4, noise=0.2)
    plain = made(past, _DAY)
    launched = made(np.r_[np.zeros(10 * _DAY), past], _DAY)

    ratios = [
        (made.path(0.95) - made.path(0.05)).mean() / made.path(0.5).mean()
        for made in (launched, plain)
    ]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.1)
    assert launched.path(0.5).mean() == pytest.approx(plain.path(0.5).mean(), rel=0.1)


def test_the_bands_of_a_young_launch_stay_open() -> None:
    found = made(np.r_[np.zeros(10 * _DAY), daily(1)[: _DAY // 4]], _DAY)

    assert (found.path(0.95) > 1.2 * found.path(0.5))[_DAY // 2 :].all()


@pytest.mark.parametrize("steps", [2, 6])
def test_the_bands_of_a_load_that_was_just_launched_are_not_those_of_its_idle_past(
    steps: int,
) -> None:
    found = made(np.r_[np.zeros(10 * _DAY), daily(1)[:steps]], _DAY)

    assert (found.path(0.95) > 1.2 * found.path(0.5))[_DAY // 8 :].all()
    assert (found.path(0.5) > 0).all()


def test_a_load_that_was_as_quiet_later_was_not_launched() -> None:
    """A load of weekends only ends on Monday, which its idle first days tell."""
    week = np.r_[np.zeros(5 * _DAY), daily(2)]
    found = made(np.r_[week, week], _DAY)

    assert found.path(0.95).max() < 0.1 * daily(2).mean()


@pytest.mark.parametrize("since", [_DAY // 4, _DAY])
def test_after_a_week_of_a_fiftieth_the_whole_load_is_forecast_by_its_course_so_far(
    since: int,
) -> None:
    whole = daily(9)
    known = whole[: 7 * _DAY + since].copy()
    known[: 7 * _DAY] *= 0.02
    coming = whole[len(known) :][:_DAY]

    found = made(known, _DAY)

    assert np.abs(found.path(0.5) - coming).mean() < 0.3 * coming.mean()
    inside = (found.path(0.05) <= coming) & (coming <= found.path(0.95))
    assert inside.mean() > 0.6


def test_a_daily_load_uses_the_day_season() -> None:
    past = daily(8)
    found = made(past[: 7 * _DAY], _DAY)

    error = np.abs(found.path(0.5) - past[7 * _DAY :]).mean()
    flat = np.abs(past[7 * _DAY - 1] - past[7 * _DAY :]).mean()
    assert "day" in found.seasons
    assert error < 0.25 * flat


def test_quiet_weekends_are_forecast_after_two_weeks() -> None:
    """On a Friday evening the day before does not predict Saturday."""
    t = np.arange(26 * _DAY)
    busy = np.where(t // _DAY % 7 >= 5, 0.2, 1.0)
    past = daily(26) * busy
    friday_ends = 26 * _DAY - 7 * _DAY
    assert busy[friday_ends - 1] == 1.0
    assert busy[friday_ends] == 0.2
    found = made(past[:friday_ends], _DAY)

    saturday = past[friday_ends : friday_ends + _DAY]
    assert "week" in found.seasons
    assert np.abs(found.path(0.5) - saturday).mean() < 0.3 * saturday.mean()


@pytest.mark.parametrize("wanders", [False, True])
def test_no_season_is_found_where_there_is_none(wanders: bool) -> None:
    """Neither in noise nor in a random walk, except for one in ten by chance."""
    found = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        steps = rng.normal(0, 0.03, 7 * _DAY)
        past = 100 * np.exp(np.cumsum(steps)) if wanders else rng.gamma(4.0, 25.0, 7 * _DAY)
        found += bool(made(past, 36).seasons)

    assert found <= 1


def test_bands_have_about_nominal_coverage() -> None:
    """Over 40 forecasts of a stationary load."""
    past = daily(10, noise=0.15)
    inside = []
    for origin in np.linspace(5 * _DAY, 10 * _DAY - 12, 40).astype(int):
        found = made(past[:origin], 12)
        observed = past[origin : origin + 12]
        inside.append(((observed >= found.path(0.05)) & (observed <= found.path(0.95))).mean())

    assert 0.82 <= np.mean(inside) <= 0.97


def test_a_step_change_is_followed_at_once() -> None:
    rng = np.random.default_rng(1)
    level = np.where(np.arange(400) < 385, 100.0, 300.0)
    found = made(level * np.exp(rng.normal(0, 0.05, 400)), 3)

    assert found.at(600, 0.95) > 270
    assert found.at(600, 0.5) > 200


def test_a_constant_load_stays_constant() -> None:
    np.testing.assert_allclose(made([7.0] * 60, 10).values, 7.0, rtol=1e-3)


def test_a_zero_load_stays_zero() -> None:
    np.testing.assert_allclose(made([0.0] * 60, 10).values, 0.0, atol=1e-6)


def test_bands_are_wider_after_a_short_history() -> None:
    """Because few errors estimate their spread poorly."""
    past = np.random.default_rng(3).gamma(16.0, 10.0, 2000)
    spans = []
    for length in (40, 2000):
        widths = [
            float(np.ptp(made(past[end - length : end], 10).values[[0, -1], -1]))
            for end in range(1000, 2001, 100)
            if end >= length
        ]
        spans.append(np.mean(widths))

    assert spans[0] > 1.05 * spans[1]


def test_a_gap_is_not_a_load_of_zero() -> None:
    past = np.random.default_rng(4).normal(100.0, 3.0, 500)
    past[200:260] = np.nan
    past[490:] = np.nan

    assert made(past, 6).path(0.05).min() > 85


def test_bursts_do_not_move_the_median() -> None:
    rng = np.random.default_rng(5)
    past = rng.normal(100.0, 3.0, 600)
    past[rng.integers(0, 595, 12)] *= 20
    past[-5:] = 100.0

    assert made(past, 6).path(0.5).max() < 150


def test_a_short_history_is_undecided_and_names_the_needed_length() -> None:
    few = LoadSeries(0.0, 60.0, np.ones(LEAST_OBSERVATIONS - 1))
    short = LoadSeries(0.0, 60.0, np.ones(100))
    gaps = LoadSeries(0.0, 60.0, np.full(500, np.nan))

    assert forecast(few, 1) == UndecidedForecast("19 steps of history; a forecast needs 20")
    assert forecast(gaps, 1) == UndecidedForecast("0 steps of history; a forecast needs 20")
    assert forecast(short, 51) == UndecidedForecast(
        "100 steps of history; a forecast 51 ahead needs 102, 2 times the horizon"
    )
    assert forecast(load_series([], [], 60.0), 1) == UndecidedForecast(
        "0 steps of history; a forecast needs 20"
    )


def test_the_length_needed_past_unknown_steps_counts_them_too() -> None:
    def after(known: int) -> LoadForecast | UndecidedForecast:
        return forecast(LoadSeries(0.0, 60.0, np.r_[np.ones(known), np.full(20, np.nan)]), 40)

    assert after(119) == UndecidedForecast(
        "119 steps of history; a forecast 40 ahead after 20 that are not known needs 120, 2 times "
        "both together"
    )
    assert isinstance(after(120), LoadForecast)


def test_a_forecast_begins_where_its_history_ends() -> None:
    series = LoadSeries(6000.0, 60.0, np.arange(100.0))
    found = forecast(series, 5, (0.9, 0.5))

    assert isinstance(found, LoadForecast)
    assert found.start_seconds == 12_000.0
    assert found.horizon_seconds == 300.0
    assert found.at(300, 0.9) == found.path(0.9)[4]
    assert found.at(300, 0.9) >= found.at(300, 0.5)
    with pytest.raises(KeyError, match=r"0.95 is none of \(0.9, 0.5\)"):
        found.path(0.95)
    with pytest.raises(KeyError, match="301 s ahead"):
        found.at(301, 0.9)


def test_experts_are_sorted_by_weight() -> None:
    found = made(daily(8), _DAY)
    weights = [weight for _, weight in found.experts]

    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1.0)


def test_only_the_last_four_weeks_of_minutes_are_used() -> None:
    """Its last weeks are used, and counted as observations."""
    year = np.tile(daily(1), 3650)[:525_600]
    found = made(year, 1440, step_seconds=60.0)

    assert found.observations == 40_320
    assert found.values.shape == (len(QUANTILES), 1440)


@pytest.mark.parametrize("gap_steps", [1, 18, 72])
def test_unknown_steps_at_the_end_lengthen_the_horizon(gap_steps: int) -> None:
    """The bands are those of a horizon longer by the gap, and the season continues."""
    values = daily(14)
    values[-gap_steps:] = np.nan
    with_gap = made(values, 24)
    far = made(values[:-gap_steps], 24 + gap_steps)

    np.testing.assert_array_equal(with_gap.values, far.values[:, gap_steps:])
    assert with_gap.observations == 14 * _DAY - gap_steps


def test_a_long_gap_at_the_end_makes_a_forecast_undecided() -> None:
    values = np.full(200, 5.0)
    values[100:] = np.nan
    found = forecast(LoadSeries(0.0, 60.0, values), 10)

    assert isinstance(found, UndecidedForecast)
    assert "100 that are not known" in found.why


def test_steps_older_than_the_limit_do_not_count_as_history() -> None:
    values = np.full(50_000, np.nan)
    values[:30] = 7.0
    values[-1] = 7.0

    assert isinstance(forecast(LoadSeries(0.0, 60.0, values), 4), UndecidedForecast)


@pytest.mark.parametrize(
    ("horizon_steps", "quantiles", "message"),
    [
        (0, QUANTILES, "a horizon of 0 steps"),
        (-3, QUANTILES, "a horizon of -3 steps"),
        (1, (), "quantiles"),
        (1, (0.0, 0.5), "each lies between 0 and 1"),
        (1, (0.5, 1.0), "each lies between 0 and 1"),
        (1, (float("nan"),), "each lies between 0 and 1"),
    ],
)
def test_invalid_horizons_and_quantiles_are_rejected(
    horizon_steps: int, quantiles: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        forecast(LoadSeries(0.0, 60.0, np.ones(100)), horizon_steps, quantiles)


def test_a_load_with_idle_nights_is_not_forecast_far_above_its_past() -> None:
    """At 24 hours only outcomes of the second night are known: without error, so without scale."""
    hours = np.arange(2 * 1440 + 450) / 60 % 24
    rng = np.random.default_rng(1)
    values = np.where((hours >= 8) & (hours < 20), 20 * rng.lognormal(0, 0.1, len(hours)), 0.0)

    found = made(values, 1440, step_seconds=60)

    assert found.values.max() < 2 * values.max()


def test_a_shared_forecast_equals_a_separate_one() -> None:
    load = LoadSeries(0.0, 600.0, daily(6))
    shared = SharedForecasts()
    of_paths, found = shared.forecast(load, 48, PATH_QUANTILES), shared.forecast(load, 48)
    alone = forecast(load, 48)
    assert isinstance(of_paths, LoadForecast)
    assert isinstance(found, LoadForecast)
    assert isinstance(alone, LoadForecast)

    assert found.quantiles == QUANTILES
    np.testing.assert_allclose(found.values, alone.values, rtol=0.02)
    np.testing.assert_array_equal(found.path(0.9), of_paths.path(0.9))


def test_other_quantiles_than_those_of_paths_are_forecast_separately() -> None:
    load = LoadSeries(0.0, 600.0, daily(6))
    found, alone = SharedForecasts().forecast(load, 12, (0.8,)), forecast(load, 12, (0.8,))

    assert isinstance(found, LoadForecast)
    assert isinstance(alone, LoadForecast)
    np.testing.assert_array_equal(found.values, alone.values)
