"""Error of past forecasts, measured against their outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import LoadSeries


@dataclass(frozen=True, slots=True)
class PastForecast:
    """An earlier forecast of the load at `at_seconds`: its median and a high quantile."""

    made_seconds: float
    at_seconds: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class ForecastError:
    """Error of the forecasts whose outcome is known.

    `error_ratio` is the median of the absolute relative errors, `bias_ratio` the median of forecast
    / outcome - 1, `held` the share of outcomes up to the high quantile `quantile`.
    """

    count: int
    error_ratio: float
    bias_ratio: float
    held: float
    quantile: float
    ahead_seconds: float


def forecast_error(
    made: Iterable[PastForecast], observed: LoadSeries, quantile: float
) -> ForecastError | None:
    """Compare past forecasts with the observed load; None if no outcome is usable.

    Outcomes that are unknown or 0 are left out.
    """
    rows = []
    for each in made:
        step = int((each.at_seconds - observed.start_seconds) // observed.step_seconds)
        if 0 <= step < len(observed.values) and observed.values[step] > 0:
            outcome = float(observed.values[step])
            ahead = each.at_seconds - each.made_seconds
            rows.append((each.median / outcome - 1, outcome <= each.high, ahead))
    if not rows:
        return None
    errors, held, aheads = np.array(rows, dtype=np.float64).T
    return ForecastError(
        count=len(rows),
        error_ratio=float(np.median(np.abs(errors))),
        bias_ratio=float(np.median(errors)),
        held=float(held.mean()),
        quantile=quantile,
        ahead_seconds=float(np.median(aheads)),
    )
