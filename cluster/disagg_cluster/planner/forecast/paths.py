"""Joint sample paths of future load: requests, prompt tokens and output tokens.

Provisioning for the quantiles of each driver separately overprovisions. A path is one whole future:
over all paths each step of each driver has the forecast quantiles, and steps and drivers are
correlated as past errors were (Schaake shuffle: Clark et al. 2004, on errors instead of
observations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.forecast.experts import DAY_SECONDS, WEEK_SECONDS
from disagg_cluster.planner.forecast.forecaster import Forecasting, forecast
from disagg_cluster.planner.forecast.load_forecast import (
    PATH_QUANTILES,
    LoadForecast,
    UndecidedForecast,
)
from disagg_cluster.planner.forecast.running_means import RunningMeans
from disagg_cluster.planner.history.load_series import Floats, LoadSeries

PATHS = 200
_PERIODS = {"day": DAY_SECONDS, "week": WEEK_SECONDS}
# An error is the outcome minus the mean of so many steps before its origin.
_LEVEL_STEPS = 6
_LEAST_ORIGINS = 8
_FADING_SECONDS = 3600.0
# Less than once in thirty years counts as 0.
_LEAST_RATE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class LoadPaths:
    """Equally likely futures of one model: `[path, step]`, rates per second.

    `prompt_tokens` are those to compute, without cache hits. The first step begins at
    `start_seconds`.
    """

    start_seconds: float
    step_seconds: float
    requests: Floats
    prompt_tokens: Floats
    output_tokens: Floats

    @property
    def count(self) -> int:
        """Number of paths."""
        return int(self.requests.shape[0])

    @property
    def steps(self) -> int:
        """Number of steps of each path."""
        return int(self.requests.shape[1])

    @property
    def horizon_seconds(self) -> float:
        """How far ahead the paths reach."""
        return self.step_seconds * self.steps

    def scaled(
        self,
        requests: float | Floats = 1.0,
        prompt_length: float = 1.0,
        output_length: float = 1.0,
    ) -> LoadPaths:
        """The same futures with requests, prompt and output lengths multiplied by these factors.

        That of requests may be `[path, step]`.
        """
        return replace(
            self,
            requests=self.requests * requests,
            prompt_tokens=self.prompt_tokens * (requests * prompt_length),
            output_tokens=self.output_tokens * (requests * output_length),
        )

    def later(self, steps: int) -> LoadPaths:
        """The same futures without their first `steps` steps."""
        return replace(
            self,
            start_seconds=self.start_seconds + steps * self.step_seconds,
            requests=self.requests[:, steps:],
            prompt_tokens=self.prompt_tokens[:, steps:],
            output_tokens=self.output_tokens[:, steps:],
        )

    def renewed(
        self, now_seconds: float, requests: float, prompt_tokens: float, output_tokens: float
    ) -> LoadPaths:
        """Update these futures at a later time from the present loads.

        The medians start at the present loads and return to the forecast, half of the way per
        hour; the relative spread around them is that of the same distance ahead. It replaces a new
        forecast where that would take too long.
        """
        steps = min(
            self.steps - 1, max(0, int((now_seconds - self.start_seconds) // self.step_seconds))
        )
        left = self.steps - steps
        fading = 0.5 ** (np.arange(left) * self.step_seconds / _FADING_SECONDS)

        def updated(of: Floats, present: float) -> Floats:
            median = np.median(of, axis=0)
            off = present / median[steps] - 1 if median[steps] > 0 else 0.0
            around = of[:, :left] / np.where(median[:left] > 0, median[:left], 1.0)
            paths: Floats = median[steps:] * (1 + off * fading) * around
            return paths

        return LoadPaths(
            now_seconds,
            self.step_seconds,
            updated(self.requests, requests),
            updated(self.prompt_tokens, prompt_tokens),
            updated(self.output_tokens, output_tokens),
        )

    def in_blocks(self, block_seconds: float) -> LoadPaths:
        """Means over blocks of whole steps, at least one; the last block may be shorter."""
        width = max(1, round(block_seconds / self.step_seconds))
        if width == 1:
            return self
        return replace(
            self,
            step_seconds=self.step_seconds * width,
            requests=_block_means(self.requests, width),
            prompt_tokens=_block_means(self.prompt_tokens, width),
            output_tokens=_block_means(self.output_tokens, width),
        )


def forecast_paths(
    requests: LoadSeries,
    prompt_tokens: LoadSeries,
    output_tokens: LoadSeries,
    horizon_steps: int,
    count: int = PATHS,
    forecasting: Forecasting = forecast,
) -> LoadPaths | UndecidedForecast:
    """Forecast three loads on the same time grid and draw their futures jointly."""
    drivers = (requests, prompt_tokens, output_tokens)
    forecasts = []
    for name, series in zip(("requests", "prompt tokens", "output tokens"), drivers, strict=True):
        made = forecasting(series, horizon_steps, PATH_QUANTILES)
        if isinstance(made, UndecidedForecast):
            return UndecidedForecast(f"{name}: {made.why}")
        forecasts.append(made)
    return coupled_paths(drivers, forecasts, count)


def coupled_paths(
    drivers: Sequence[LoadSeries], forecasts: Sequence[LoadForecast], count: int = PATHS
) -> LoadPaths:
    """Paths with the quantiles of the forecasts, correlated as past errors were.

    A past shorter than about two horizons has too few errors: then all drivers and steps rise and
    fall together, the case that needs the most capacity at once.

    Args:
        drivers: The past of requests, prompt tokens and output tokens.
        forecasts: Their forecasts, equally long.
        count: Number of paths.

    Raises:
        ValueError: The series do not end together, or the forecasts differ in length.
    """
    ends = {(series.end_seconds, series.step_seconds) for series in drivers}
    horizons = {int(made.values.shape[1]) for made in forecasts}
    if len(ends) > 1 or len(horizons) > 1:
        raise ValueError(f"series that end at {sorted(ends)}, forecasts of {sorted(horizons)}")
    horizon = horizons.pop()
    ranks = _error_ranks(drivers, forecasts, horizon, count)
    requests, prompt, output = (
        _drawn(made, rank) for made, rank in zip(forecasts, ranks, strict=True)
    )
    first = forecasts[0]
    some = (np.where(of < _LEAST_RATE, 0.0, of) for of in (requests, prompt, output))
    return LoadPaths(first.start_seconds, first.step_seconds, *some)


def _drawn(made: LoadForecast, ranks: NDArray[np.int64]) -> Floats:
    """The quantile of each rank in each step, never beyond the outermost quantiles."""
    order = np.argsort(made.quantiles)
    levels = np.asarray(made.quantiles)[order]
    even = (np.arange(len(ranks)) + 0.5) / len(ranks)
    # Weights of the forecast quantiles in that of each rank, by linear interpolation.
    shares = np.stack([np.interp(even, levels, each) for each in np.eye(len(levels))], axis=-1)
    paths: Floats = np.take_along_axis(shares @ made.values[order], ranks, axis=0)
    return paths


def _error_ranks(
    drivers: Sequence[LoadSeries], forecasts: Sequence[LoadForecast], horizon: int, count: int
) -> NDArray[np.int64]:
    """`[driver, path, step]`: the rank of a past error among those of the same driver and step."""
    length = min(len(series.values) for series in drivers)
    pasts = [series.values[-length:] for series in drivers]
    # One period for all drivers, so that their errors are comparable.
    seasons = {season for made in forecasts for season in made.seasons}
    step = drivers[0].step_seconds
    period = max((round(_PERIODS[season] / step) for season in seasons), default=0)
    fewest = max(_LEAST_ORIGINS, horizon)
    if length - horizon - period < fewest:
        period = 0
    first, last = max(period, 1), length - horizon
    if last - first < fewest:
        level = np.arange(count)[None, :, None]
        return np.broadcast_to(level, (len(drivers), count, horizon))
    # A fixed seed: the same past gives the same plan.
    rng = np.random.default_rng(0)
    origins = np.round(np.linspace(first, last, count)).astype(np.int64)
    ranks = np.empty((len(drivers), horizon, count), dtype=np.int64)
    # Equal errors (a load of zeros) get the same order for all drivers and steps.
    chance = np.argsort(rng.random(count))
    for number, values in enumerate(pasts):
        errors = np.ascontiguousarray(_errors(values, origins, horizon, period)[chance].T)
        order = chance[np.argsort(errors, axis=1, kind="stable")]
        np.put_along_axis(ranks[number], order, np.arange(count)[None, :], axis=1)
    return np.swapaxes(ranks, 1, 2)


def _errors(values: Floats, origins: NDArray[np.int64], horizon: int, period: int) -> Floats:
    """Load after each origin minus the level before it, or minus the load a period earlier.

    `[origin, step]`; an unknown step takes the error of the step before it.
    """
    ahead = origins[:, None] + np.arange(horizon)
    errors = values[ahead]
    if period:
        back = -(-(np.arange(horizon) + 1) // period) * period
        errors = errors - values[np.maximum(ahead - back, 0)]
    else:
        errors = errors - RunningMeans(values).trailing(_LEVEL_STEPS, origins - 1)[:, None]
    errors = np.where(np.isfinite(errors), errors, np.nan)
    known = np.where(np.isfinite(errors), np.arange(horizon), 0)
    filled = np.take_along_axis(errors, np.maximum.accumulate(known, axis=1), axis=1)
    found: Floats = np.nan_to_num(filled)
    return found


def _block_means(paths: Floats, width: int) -> Floats:
    starts = np.arange(0, paths.shape[1], width)
    sizes = np.diff(np.append(starts, paths.shape[1]))
    means: Floats = np.add.reduceat(paths, starts, axis=1) / sizes
    return means
