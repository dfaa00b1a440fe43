"""How good forecasts of a load were: made again from past moments, held against what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from disagg_cluster.planner.forecast.forecaster import forecast
from disagg_cluster.planner.forecast.load_forecast import (
    LEAST_HISTORY_PER_HORIZON,
    LEAST_OBSERVATIONS,
    QUANTILES,
    LoadForecast,
)
from disagg_cluster.planner.history.load_series import Floats, LoadSeries
from disagg_cluster.planner.outlook.horizons import ORIGINS
from disagg_cluster.planner.outlook.model_outlook import UndecidedHorizon

LEAST_ORIGINS = 4
"""Fewer outcomes judge nobody."""
_MOST_ERRORS = 2000


@dataclass(frozen=True, slots=True)
class HorizonScore:
    """Errors in the part of the future that ends at a horizon and begins at the one before.

    * `error_ratio`: the sum of the median's absolute errors over the sum of what came;
      `last_value_error_ratio` is the same for a forecast that says the last known value.
    * `pinball_ratio`: the mean pinball loss of all quantiles over that of the last value with the
      quantiles of its own past errors (Koenker and Bassett 1978; below 1 is better than it).
    * `covered_ratio`: how much of what came lay between the lowest and the highest quantile, which
      should be `band`.

    A ratio is None where it has nothing to divide by: nothing came, or the last value was exact.
    """

    horizon_seconds: float
    origins: int
    error_ratio: float | None
    last_value_error_ratio: float | None
    pinball_ratio: float | None
    covered_ratio: float
    band: float


def back_test(
    series: LoadSeries,
    horizons_seconds: Sequence[float],
    origins: int = ORIGINS,
    quantiles: Sequence[float] = QUANTILES,
    say: Callable[[int, int], None] = lambda _done, _of: None,
) -> tuple[HorizonScore | UndecidedHorizon, ...]:
    """Forecast again from past moments, each with what was known then.

    Moments are spread evenly over the last two thirds of the history. A horizon is judged at those
    that have twice its length before them and all of it behind them; without enough of them it is
    undecided.

    Args:
        series: The load.
        horizons_seconds: In any order.
        origins: How many moments; one forecast each.
        quantiles: In rising order.
        say: Told how many of how many forecasts are done.
    """
    ends = sorted({_steps(each, series) for each in horizons_seconds})
    told = {steps: _Outcomes(tuple(quantiles)) for steps in ends}
    moments = _moments(series, ends, origins)
    for done, origin in enumerate(moments):
        say(done, len(moments))
        known = LoadSeries(series.start_seconds, series.step_seconds, series.values[:origin])
        wanted = [steps for steps in ends if _fits(series, origin, steps)]
        made = forecast(known, max(wanted), quantiles)
        if not isinstance(made, LoadForecast):
            continue
        for first, last in pairwise([0, *wanted]):
            came = series.values[origin + first : origin + last]
            plain = _last_value(known.values, first, last, made.quantiles)
            told[last].add(came, made.values[:, first:last], plain, _last(known.values))
    return tuple(told[_steps(each, series)].score(each) for each in horizons_seconds)


class _Outcomes:
    """What came, beside what two forecasts said of it."""

    def __init__(self, quantiles: tuple[float, ...]) -> None:
        self._quantiles = np.asarray(quantiles)
        self._middle = int(np.argmin(np.abs(self._quantiles - 0.5)))
        self._sums = np.zeros(5)
        self._covered = 0
        self._known = 0
        self._origins = 0

    def add(self, came: Floats, ours: Floats, plain: Floats, last: float) -> None:
        known = np.isfinite(came)
        if not known.any():
            return
        came, ours, plain = came[known], ours[:, known], plain[:, known]
        self._origins += 1
        self._known += len(came)
        self._covered += int(((came >= ours[0]) & (came <= ours[-1])).sum())
        self._sums += (
            np.abs(came - ours[self._middle]).sum(),
            np.abs(came - last).sum(),
            came.sum(),
            _pinball(came, ours, self._quantiles),
            _pinball(came, plain, self._quantiles),
        )

    def score(self, horizon_seconds: float) -> HorizonScore | UndecidedHorizon:
        if self._origins < LEAST_ORIGINS:
            return UndecidedHorizon(
                horizon_seconds,
                f"{self._origins} past moments have history enough before them and outcomes behind "
                f"them; a back-test needs {LEAST_ORIGINS}",
            )
        error, last_error, came, loss, last_loss = map(float, self._sums)
        return HorizonScore(
            horizon_seconds,
            self._origins,
            _over(error, came),
            _over(last_error, came),
            _over(loss, last_loss),
            self._covered / self._known,
            float(self._quantiles[-1] - self._quantiles[0]),
        )


def _moments(series: LoadSeries, ends: Sequence[int], origins: int) -> list[int]:
    """The steps before which history ends, evenly spread over the last two thirds."""
    length = len(series.values)
    first, last = max(_begin(series, ends[0]), length // 3), length - ends[0]
    spread = {int(each) for each in np.linspace(first, last, origins)} if first <= last else set()
    return sorted(each for each in spread if _fits(series, each, ends[0]))


def _fits(series: LoadSeries, origin: int, steps: int) -> bool:
    """Whether there is history enough before a moment, and a whole horizon behind it."""
    return _begin(series, steps) <= origin <= len(series.values) - steps


def _begin(series: LoadSeries, steps: int) -> int:
    known = np.isfinite(series.values)
    begin = int(np.argmax(known)) if known.any() else len(known)
    return begin + max(LEAST_OBSERVATIONS, LEAST_HISTORY_PER_HORIZON * steps)


def _steps(horizon_seconds: float, series: LoadSeries) -> int:
    return max(1, int(np.ceil(horizon_seconds / series.step_seconds)))


def _last(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else 0.0


def _last_value(values: Floats, first: int, last: int, quantiles: Sequence[float]) -> Floats:
    """The last value and the quantiles of what it was off by, this far ahead, so far."""
    lag = (first + last + 1) // 2
    errors = (values[lag:] - values[:-lag])[-_MOST_ERRORS:]
    errors = errors[np.isfinite(errors)]
    spread = np.quantile(errors, quantiles) if len(errors) else np.zeros(len(quantiles))
    return np.repeat(np.maximum(_last(values) + spread, 0.0)[:, None], last - first, axis=1)


def _pinball(came: Floats, said: Floats, quantiles: Floats) -> float:
    short = came - said
    return float(np.maximum(quantiles[:, None] * short, (quantiles[:, None] - 1) * short).sum())


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
