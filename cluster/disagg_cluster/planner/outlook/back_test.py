"""Back-tests: forecasts repeated from past moments and compared with the outcomes."""

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
from disagg_cluster.planner.outlook.model_outlook import UndecidedHorizon, longer_steps
from disagg_exporter.model.counted import agreeing, counted

LEAST_ORIGINS = 4
"""A score needs at least so many outcomes."""
_MOST_ERRORS = 2000


@dataclass(frozen=True, slots=True)
class HorizonScore:
    """Errors in the interval from the next shorter horizon to this one.

    * `error_ratio`: sum of the median's absolute errors / sum of the observed load;
      `last_value_error_ratio` is the same for a forecast that repeats the last known value.
    * `pinball_ratio`: mean pinball loss of all quantiles / that of the last value with the
      quantiles of its own past errors (Koenker and Bassett 1978; below 1 is better).
    * `covered_ratio`: share of outcomes between the lowest and the highest quantile; its nominal
      value is `band`.

    A ratio is None where its divisor is 0: there was no load, or the last value was exact.
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
    """Repeat forecasts from past moments, each with what was known then.

    Moments are spread evenly over the last two thirds of the history. A horizon is scored at those
    with at least twice its length of history before them and its whole length after them; with too
    few of them it is undecided. So is a horizon shorter than a step.

    Args:
        series: The load.
        horizons_seconds: Horizons in any order.
        origins: Number of moments, with one forecast each.
        quantiles: Quantiles in rising order.
        say: Called with the number of finished forecasts and their total.
    """
    long_steps = {each: longer_steps(each, series) for each in horizons_seconds}
    ends = sorted({_steps(each, series) for each, long in long_steps.items() if long is None})
    outcomes = {steps: _Outcomes(tuple(quantiles)) for steps in ends}
    moments = _moments(series, ends, origins) if ends else []
    for done, origin in enumerate(moments):
        say(done, len(moments))
        known = LoadSeries(series.start_seconds, series.step_seconds, series.values[:origin])
        wanted = [steps for steps in ends if _fits(series, origin, steps)]
        made = forecast(known, max(wanted), quantiles)
        if not isinstance(made, LoadForecast):
            continue
        for first, last in pairwise([0, *wanted]):
            observed = series.values[origin + first : origin + last]
            plain = _last_value(known.values, first, last, made.quantiles)
            outcomes[last].add(observed, made.values[:, first:last], plain, _last(known.values))
    return tuple(
        long_steps[each] or outcomes[_steps(each, series)].score(each) for each in horizons_seconds
    )


class _Outcomes:
    """Sums over outcomes and the errors of two forecasts: ours and the last value."""

    def __init__(self, quantiles: tuple[float, ...]) -> None:
        self._quantiles = np.asarray(quantiles)
        self._middle = int(np.argmin(np.abs(self._quantiles - 0.5)))
        self._sums = np.zeros(5)
        self._covered = 0
        self._known = 0
        self._origins = 0

    def add(self, observed: Floats, ours: Floats, plain: Floats, last: float) -> None:
        known = np.isfinite(observed)
        if not known.any():
            return
        observed, ours, plain = observed[known], ours[:, known], plain[:, known]
        self._origins += 1
        self._known += len(observed)
        self._covered += int(((observed >= ours[0]) & (observed <= ours[-1])).sum())
        self._sums += (
            np.abs(observed - ours[self._middle]).sum(),
            np.abs(observed - last).sum(),
            observed.sum(),
            _pinball(observed, ours, self._quantiles),
            _pinball(observed, plain, self._quantiles),
        )

    def score(self, horizon_seconds: float) -> HorizonScore | UndecidedHorizon:
        if self._origins < LEAST_ORIGINS:
            have = agreeing(self._origins, "has", "have")
            them = agreeing(self._origins, "it", "them")
            return UndecidedHorizon(
                horizon_seconds,
                f"{counted(self._origins, 'past moment')} {have} history enough before {them} and "
                f"outcomes behind {them}; a back-test needs {LEAST_ORIGINS}",
            )
        error, last_error, load, loss, last_loss = map(float, self._sums)
        return HorizonScore(
            horizon_seconds,
            self._origins,
            _ratio(error, load),
            _ratio(last_error, load),
            _ratio(loss, last_loss),
            self._covered / self._known,
            float(self._quantiles[-1] - self._quantiles[0]),
        )


def _moments(series: LoadSeries, ends: Sequence[int], origins: int) -> list[int]:
    """Steps at which the known history ends, evenly spread over the last two thirds."""
    length = len(series.values)
    first, last = max(_begin(series, ends[0]), length // 3), length - ends[0]
    spread = {int(each) for each in np.linspace(first, last, origins)} if first <= last else set()
    return sorted(each for each in spread if _fits(series, each, ends[0]))


def _fits(series: LoadSeries, origin: int, steps: int) -> bool:
    """Whether a moment has enough history before it and a whole horizon after it."""
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
    """The last value plus the quantiles of its past errors at this horizon."""
    lag = (first + last + 1) // 2
    errors = (values[lag:] - values[:-lag])[-_MOST_ERRORS:]
    errors = errors[np.isfinite(errors)]
    spread = np.quantile(errors, quantiles) if len(errors) else np.zeros(len(quantiles))
    return np.repeat(np.maximum(_last(values) + spread, 0.0)[:, None], last - first, axis=1)


def _pinball(observed: Floats, predicted: Floats, quantiles: Floats) -> float:
    short = observed - predicted
    return float(np.maximum(quantiles[:, None] * short, (quantiles[:, None] - 1) * short).sum())


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
