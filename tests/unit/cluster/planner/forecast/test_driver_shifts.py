from __future__ import annotations

import numpy as np
import pytest

from disagg_cluster.planner.forecast.driver_shifts import driver_shifts
from disagg_cluster.planner.history.load_series import Floats, LoadSeries

_MINUTES = 1440


def load(values: Floats) -> LoadSeries:
    return LoadSeries(0.0, 60.0, values)


def levels(*parts: tuple[float, int]) -> Floats:
    """Levels, each for some minutes, with a little noise."""
    steady = np.concatenate([np.full(minutes, level) for level, minutes in parts])
    found: Floats = steady * np.exp(0.02 * np.random.default_rng(1).standard_normal(len(steady)))
    return found


def test_the_latest_shift_has_its_levels_and_its_time() -> None:
    requests = load(levels((5.0, 600), (20.0, 500), (8.0, 340)))
    prompts = load(requests.values * 1000)

    (shift,) = driver_shifts(
        {"requests": ("a second", requests, None), "prompt length": ("tokens", prompts, requests)}
    )

    assert (shift.name, shift.since_seconds) == ("requests", 1100 * 60)
    assert (shift.before, shift.after) == pytest.approx((20.0, 8.0), rel=0.02)
    assert shift.factor == pytest.approx(0.4, rel=0.02)


def test_a_load_that_rests_now_has_no_present_level() -> None:
    rested = load(levels((5.0, 600), (8.0, 500), (0.0, 340)))

    assert driver_shifts({"requests": ("a second", rested, None)}) == ()
    assert driver_shifts({"requests": ("a second", load(np.zeros(_MINUTES)), None)}) == ()


def test_tokens_of_next_to_no_requests_are_no_length() -> None:
    tokens, none = load(np.full(_MINUTES, 1e15)), load(np.full(_MINUTES, 1e-300))

    assert driver_shifts({"prompt length": ("tokens", tokens, none)}) == ()
