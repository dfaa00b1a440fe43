"""How wrong forecasts were, by what came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import LoadSeries


@dataclass(frozen=True, slots=True)
class PastForecast:
    """What was once said of the load at `at_seconds`: its median, and a high quantile of it."""

    made_seconds: float
    at_seconds: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class ForecastError:
    """Forecasts that came due: their error in the median, relative; whether they ran high or low.

    `bias` is the median of forecast over outcome, less 1; `held` the share of outcomes below the
    high quantile `quantile`.
    """

    count: int
    error_ratio: float
    bias_ratio: float
    held: float
    quantile: float
    ahead_seconds: float


def forecast_error(
    made: Iterable[PastForecast], came: LoadSeries, quantile: float
) -> ForecastError | None:
    """Hold past forecasts against what came; None if none has come due.

    Outcomes that are not known, and those of nothing, are left out.
    """
    rows = []
    for each in made:
        step = int((each.at_seconds - came.start_seconds) // came.step_seconds)
        if 0 <= step < len(came.values) and came.values[step] > 0:
            outcome = float(came.values[step])
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
