from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.forecast.running_means import RunningMeans

_NAN = float("nan")


@given(
    st.lists(st.one_of(st.just(_NAN), st.floats(0, 1000)), min_size=1, max_size=40),
    st.integers(1, 50),
)
def test_means_are_those_of_the_known_values_in_the_window(values: list[float], width: int) -> None:
    series = np.array([1.0, *values])
    trailing = RunningMeans(series).trailing(width)
    centred = RunningMeans(series).centred(width)

    last = 1.0
    for i, value in enumerate(series):
        last = last if math.isnan(value) else value
        window = series[max(0, i - width + 1) : i + 1]
        known = window[np.isfinite(window)]
        np.testing.assert_allclose(trailing[i], known.mean() if len(known) else last, atol=1e-6)
        around = series[max(0, i - width // 2) : i + width // 2 + 1]
        known = around[np.isfinite(around)]
        np.testing.assert_allclose(centred[i], known.mean() if len(known) else _NAN, atol=1e-6)
