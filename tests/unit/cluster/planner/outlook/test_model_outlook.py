from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.outlook.model_outlook import (
    HorizonLoad,
    UndecidedHorizon,
    model_outlook,
    phase_outlook,
)
from disagg_cluster.planner.outlook.wording import named
from disagg_exporter.model import Phase

HOURS = (300.0, 3600.0, 21_600.0)


def wave(steps: int, seed: int = 0) -> LoadSeries:
    noise = np.random.default_rng(seed).normal(0, 0.2, steps)
    return LoadSeries(6000.0, 60.0, 10 + np.sin(np.arange(steps) / 200) + noise)


def test_a_name_from_a_foreign_prometheus_does_not_command_the_terminal() -> None:
    key = LoadKey(
        cluster="east\x9b2J",
        model_name="llama\x1b]0;owned\x07\nmodel other",
        engine_namespace="chat",
    )

    assert named(key) == (
        r"model llama\x1b]0;owned\x07\nmodel other, namespace chat, cluster east\x9b2J"
    )


def test_horizons_count_from_the_last_step() -> None:
    outlook = phase_outlook(Phase.DECODE, wave(1000), HOURS)

    (near, middle, far) = outlook.horizons
    assert isinstance(near, HorizonLoad)
    assert isinstance(middle, HorizonLoad)
    assert isinstance(far, HorizonLoad)
    end = 6000 + 1000 * 60
    assert (near.at_seconds, middle.at_seconds) == (end + 240, end + 3540)
    assert outlook.forecast is not None
    assert outlook.forecast.horizon_seconds == 21_600
    assert middle.tokens_per_second[1] == outlook.forecast.at(3600, 0.5)


def test_after_a_gap_only_horizons_longer_than_it_are_decided() -> None:
    """For a model that is gone, the next minutes are unknown."""
    load = wave(3000)
    load.values[-90:] = np.nan

    near, middle, far = phase_outlook(Phase.DECODE, load, HOURS).horizons

    assert isinstance(near, UndecidedHorizon)
    assert near.why == "nothing is known of the last 1h 30m"
    assert isinstance(middle, UndecidedHorizon)
    assert isinstance(far, HorizonLoad)


@pytest.mark.parametrize("steps", [0, 5])
def test_a_series_without_known_steps_is_undecided(steps: int) -> None:
    load = LoadSeries(0.0, 60.0, np.full(steps, np.nan))
    outlook = phase_outlook(Phase.PREFILL, load, HOURS)

    assert outlook.last_known is None
    assert outlook.forecast is None
    assert all(isinstance(each, UndecidedHorizon) for each in outlook.horizons)


def test_the_trend_uses_gpu_seconds_where_known() -> None:
    load = wave(1000)
    history = LoadHistory(LoadKey(), load, load, load)

    assert model_outlook(history, (300.0,)).work == "tokens"
    with_gpus = LoadHistory(LoadKey(), load, load, load, wave(1000, 1), wave(1000, 2))
    assert model_outlook(with_gpus, (300.0,)).work == "gpu_seconds"
