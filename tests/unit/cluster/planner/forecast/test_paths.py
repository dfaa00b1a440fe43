from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.forecast.forecaster import forecast
from disagg_cluster.planner.forecast.load_forecast import LoadForecast, UndecidedForecast
from disagg_cluster.planner.forecast.paths import (
    PATH_QUANTILES,
    LoadPaths,
    coupled_paths,
    forecast_paths,
)
from disagg_cluster.planner.history.load_series import Floats, LoadSeries

_STEP = 300.0


def series(values: Floats) -> LoadSeries:
    return LoadSeries(0.0, _STEP, np.asarray(values, dtype=np.float64))


def noisy(seed: int, steps: int = 400) -> Floats:
    rng = np.random.default_rng(seed)
    return np.asarray(100 * np.exp(rng.normal(0, 0.3, steps)))


def drawn(
    requests: Floats, prompt: Floats, output: Floats, steps: int = 12, count: int = 200
) -> LoadPaths:
    found = forecast_paths(series(requests), series(prompt), series(output), steps, count)
    assert isinstance(found, LoadPaths)
    return found


def test_each_step_of_each_driver_has_the_quantiles_that_were_forecast() -> None:
    loads = [series(noisy(seed)) for seed in range(3)]
    made = [forecast(each, 12, PATH_QUANTILES) for each in loads]
    forecasts = [each for each in made if isinstance(each, LoadForecast)]
    paths = coupled_paths(loads, forecasts, 2000)

    for of, told in zip(
        (paths.requests, paths.prompt_tokens, paths.output_tokens), forecasts, strict=True
    ):
        found = np.quantile(of, (0.05, 0.5, 0.95), axis=0)
        expected = np.array([told.path(q) for q in (0.05, 0.5, 0.95)])
        np.testing.assert_allclose(found, expected, rtol=0.02)


def test_drivers_are_correlated_as_their_errors_were() -> None:
    requests = noisy(0)
    paths = drawn(requests, requests * 900, noisy(1))

    together = np.corrcoef(paths.requests[:, 6], paths.prompt_tokens[:, 6])[0, 1]
    apart = np.corrcoef(paths.requests[:, 6], paths.output_tokens[:, 6])[0, 1]
    assert together > 0.95
    assert abs(apart) < 0.4


def test_uncorrelated_phases_need_less_than_the_sum_of_their_quantiles() -> None:
    paths = drawn(noisy(0), noisy(1), noisy(2))

    jointly = np.quantile(paths.prompt_tokens + paths.output_tokens, 0.95, axis=0)
    singly = np.quantile(paths.prompt_tokens, 0.95, axis=0)
    singly = singly + np.quantile(paths.output_tokens, 0.95, axis=0)
    assert (jointly < singly).all()


def test_steps_of_a_drifting_load_are_correlated_along_a_path() -> None:
    walk = 1000 + np.cumsum(np.random.default_rng(3).normal(0, 5, 600))
    paths = drawn(walk, walk, walk)

    assert np.corrcoef(paths.requests[:, 5], paths.requests[:, 11])[0, 1] > 0.5


def test_a_history_with_too_few_errors_gives_fully_correlated_paths() -> None:
    paths = drawn(noisy(0, 24), noisy(1, 24), noisy(2, 24), steps=12)

    assert (np.diff(paths.requests, axis=0) >= 0).all()
    assert (np.diff(paths.output_tokens, axis=0) >= 0).all()


def test_the_same_past_gives_the_same_paths() -> None:
    one, other = (drawn(noisy(0), noisy(1), noisy(2)) for _ in range(2))

    np.testing.assert_array_equal(one.prompt_tokens, other.prompt_tokens)


def test_too_little_history_is_undecided_and_names_the_driver() -> None:
    found = forecast_paths(series(noisy(0, 400)), series(noisy(0, 5)), series(noisy(0, 400)), 12)

    assert isinstance(found, UndecidedForecast)
    assert found.why.startswith("prompt tokens: 5 steps of history")


def test_series_on_different_time_grids_are_rejected() -> None:
    loads = [series(noisy(0)), series(noisy(1)), series(noisy(2)[:-1])]
    made = [forecast(each, 12, PATH_QUANTILES) for each in loads]

    with pytest.raises(ValueError, match="end at"):
        coupled_paths(loads, [each for each in made if isinstance(each, LoadForecast)])


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.one_of(st.just(float("nan")), st.just(0.0), st.floats(0.0, 1e9)),
        min_size=60,
        max_size=100,
    ),
    st.integers(1, 20),
)
def test_paths_are_finite_and_not_negative_for_any_load(values: list[float], steps: int) -> None:
    load = np.array([1.0, *values, 2.0])
    found = forecast_paths(series(load), series(load), series(load[::-1].copy()), steps)

    if isinstance(found, LoadPaths):
        for of in (found.requests, found.prompt_tokens, found.output_tokens):
            assert np.isfinite(of).all()
            assert (of >= 0).all()


def test_more_requests_bring_more_tokens_and_longer_ones_do_not_bring_requests() -> None:
    paths = drawn(noisy(0), noisy(1), noisy(2))
    more = paths.scaled(requests=2.0, prompt_length=1.5)

    np.testing.assert_allclose(more.requests, 2 * paths.requests)
    np.testing.assert_allclose(more.prompt_tokens, 3 * paths.prompt_tokens)
    np.testing.assert_allclose(more.output_tokens, 2 * paths.output_tokens)


def test_blocks_take_the_means_of_their_steps() -> None:
    steps = np.arange(10, dtype=np.float64)[None, :]
    paths = LoadPaths(0.0, 60.0, steps, steps * 2, steps * 3)
    blocks = paths.in_blocks(240.0)

    assert blocks.step_seconds == 240.0
    np.testing.assert_allclose(blocks.requests, [[1.5, 5.5, 8.5]])
    np.testing.assert_allclose(blocks.output_tokens, [[4.5, 16.5, 25.5]])


def test_renewed_paths_begin_at_the_present_load_and_return_to_the_forecast() -> None:
    around = np.array([[0.9], [1.0], [1.1]]) * np.ones(100)
    paths = LoadPaths(0.0, _STEP, around * 10, around * 100, around * 50)
    later = paths.renewed(4 * _STEP, 20.0, 100.0, 50.0)

    assert (later.start_seconds, later.steps) == (4 * _STEP, 96)
    np.testing.assert_allclose(later.requests[:, 0], [18.0, 20.0, 22.0])
    np.testing.assert_allclose(later.requests[1, -1], 10.0, rtol=0.01)
    np.testing.assert_allclose(later.prompt_tokens, 100 * around[:, :96])


def test_a_load_of_zeros_has_futures_of_zeros() -> None:
    zeros = np.zeros(100)

    paths = drawn(zeros, zeros, zeros)

    assert not paths.requests.any()
    assert not paths.prompt_tokens.any()
