from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.forecast.robust_slope import robust_slope
from disagg_cluster.planner.forecast.trend import (
    PhaseTrend,
    TrendVerdict,
    UndecidedTrend,
    phase_trend,
)
from disagg_cluster.planner.history.load_series import Floats, LoadSeries

_STEPS = 360


def a_minute(values: Floats | float) -> LoadSeries:
    return LoadSeries(0.0, 60.0, np.broadcast_to(np.asarray(values, dtype=np.float64), (_STEPS,)))


def noisy(level: Floats | float, seed: int = 0) -> LoadSeries:
    noise = np.random.default_rng(seed).normal(0, 0.1, _STEPS)
    return a_minute(np.asarray(level) * np.exp(noise))


@pytest.mark.parametrize(
    ("prefill", "verdict"),
    [
        (7.0, TrendVerdict.PREFILL_HEAVY),
        (5.0, TrendVerdict.BALANCED),
        (3.0, TrendVerdict.DECODE_HEAVY),
    ],
)
def test_a_steady_load_is_heavy_in_its_dominant_phase(
    prefill: float, verdict: TrendVerdict
) -> None:
    found = phase_trend(noisy(prefill), noisy(10.0 - prefill, 1), {})

    assert isinstance(found, PhaseTrend)
    assert found.verdict is verdict
    assert found.prefill_share == pytest.approx(prefill / 10.0, abs=0.03)


def test_a_shift_has_its_speed_and_its_drivers() -> None:
    """Prompts grow by 20 % of their median size per hour, to 1,450 lately; nothing else changes."""
    hours = (np.arange(_STEPS) + 0.5) / 60 - 3
    requests = noisy(2.0)
    prompt = a_minute(requests.values * 1000 * (1 + 0.2 * hours))
    found = phase_trend(
        noisy(5 * (1 + 0.2 * hours), 1),
        noisy(5.0, 2),
        {
            "requests": (requests, None),
            "prompt length": (prompt, requests),
            "output length": (a_minute(requests.values * 200), requests),
        },
    )

    assert isinstance(found, PhaseTrend)
    assert found.verdict is TrendVerdict.SHIFTING
    assert found.share_change_per_hour.low > 0
    assert found.drivers[0].name == "prompt length"
    assert found.drivers[0].level == pytest.approx(1450, rel=0.05)
    assert found.drivers[0].change_per_hour.middle == pytest.approx(0.2, abs=0.02)
    assert not next(d for d in found.drivers if d.name == "requests").change_per_hour.sure


@pytest.mark.parametrize(
    ("busy", "now"), [(slice(0, 220), 0.0), (slice(220, 360), 5.0), (slice(0, 360), 5.0)]
)
def test_a_driver_has_its_present_level(busy: slice, now: float) -> None:
    """Of a model that was retired, launched, or neither, about two hours ago."""
    requests = np.zeros(_STEPS)
    requests[busy] = 5.0
    load = noisy(requests)
    found = phase_trend(load, load, {"requests": (load, None)})

    assert isinstance(found, PhaseTrend)
    assert [each.level for each in found.drivers] == [pytest.approx(now, rel=0.05)]


def test_a_trend_of_unknown_work_is_undecided() -> None:
    unknown = a_minute(np.nan)
    found = phase_trend(unknown, unknown, {})

    assert isinstance(found, UndecidedTrend)
    assert "known in 0 of the last 24 windows of 15 minutes" in found.why


@pytest.mark.parametrize(("busy_steps", "windows"), [(0, 0), (30, 2)])
def test_the_work_of_an_idle_model_is_not_called_unknown(busy_steps: int, windows: int) -> None:
    """Retired, or launched half an hour ago."""
    load = a_minute(np.where(np.arange(_STEPS) >= _STEPS - busy_steps, 5.0, 0.0))
    found = phase_trend(load, load, {})

    assert isinstance(found, UndecidedTrend)
    assert found.why == (
        f"there was work in {windows} of the last 24 windows of 15 minutes; a trend needs 8"
    )


def test_one_burst_does_not_make_a_slope() -> None:
    values = np.ones(24)
    values[20] = 1000.0
    found = robust_slope(np.arange(24.0), values)

    assert found is not None
    assert found.middle == 0.0
    assert not found.sure


def test_a_slope_is_found_in_noise_with_its_interval() -> None:
    held = 0
    for seed in range(200):
        noise = np.random.default_rng(seed).standard_t(3, 24)
        found = robust_slope(np.arange(24.0), 0.1 * np.arange(24.0) + noise)
        assert found is not None
        held += found.low <= 0.1 <= found.high

    assert 170 <= held <= 194


def test_unknown_recent_work_is_judged_by_earlier_work() -> None:
    """Without a numpy warning: warnings are errors here."""
    known = np.where(np.arange(_STEPS) < 240, 7.0, np.nan)
    found = phase_trend(noisy(known), noisy(3.0, 1), {})

    assert isinstance(found, PhaseTrend)
    assert found.verdict is TrendVerdict.PREFILL_HEAVY


def test_tokens_of_next_to_no_requests_drive_no_trend() -> None:
    prompts, requests = a_minute(1e15), a_minute(1e-300)

    found = phase_trend(noisy(5.0), noisy(5.0, 1), {"prompt length": (prompts, requests)})

    assert isinstance(found, PhaseTrend)
    assert found.drivers == ()
