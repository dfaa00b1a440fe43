"""Loads to come, drawn together: requests, prompt and output tokens of one future at a time.

Quantiles of single drivers, provisioned for apart, provide twice for what happens once. A path is
one whole future: each step of each driver has the quantiles that were forecast, and steps and
drivers go together as the errors of the past did (Schaake shuffle: Clark et al. 2004, on errors
instead of observations).
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
# An error is what came less the mean of so many steps before its origin.
_LEVEL_STEPS = 6
_LEAST_ORIGINS = 8
_FADING_SECONDS = 3600.0
# Once in thirty years is never.
_LEAST_RATE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class LoadPaths:
    """Futures of one model: `[path, step]`, rates a second, all paths as likely.

    `prompt_tokens` are those to compute, after the cache. The first step begins at
    `start_seconds`.
    """

    start_seconds: float
    step_seconds: float
    requests: Floats
    prompt_tokens: Floats
    output_tokens: Floats

    @property
    def count(self) -> int:
        """How many."""
        return int(self.requests.shape[0])

    @property
    def steps(self) -> int:
        """How many steps each has."""
        return int(self.requests.shape[1])

    @property
    def horizon_seconds(self) -> float:
        """How far they reach."""
        return self.step_seconds * self.steps

    def scaled(
        self, requests: float = 1.0, prompt_length: float = 1.0, output_length: float = 1.0
    ) -> LoadPaths:
        """The same futures with more requests, longer prompts, longer outputs, by these factors."""
        return replace(
            self,
            requests=self.requests * requests,
            prompt_tokens=self.prompt_tokens * (requests * prompt_length),
            output_tokens=self.output_tokens * (requests * output_length),
        )

    def later(self, steps: int) -> LoadPaths:
        """The same futures, less so many steps at their beginning."""
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
        """What these futures say later, when the loads of the moment are known.

        The medians go on from the present loads and come back to what was forecast, half of the
        way in an hour; around them lies what lay around them as far ahead as it now is. It stands
        in for a new forecast where that would take too long.
        """
        steps = min(
            self.steps - 1, max(0, int((now_seconds - self.start_seconds) // self.step_seconds))
        )
        left = self.steps - steps
        fading = 0.5 ** (np.arange(left) * self.step_seconds / _FADING_SECONDS)

        def again(of: Floats, present: float) -> Floats:
            median = np.median(of, axis=0)
            off = present / median[steps] - 1 if median[steps] > 0 else 0.0
            around = of[:, :left] / np.where(median[:left] > 0, median[:left], 1.0)
            paths: Floats = median[steps:] * (1 + off * fading) * around
            return paths

        return LoadPaths(
            now_seconds,
            self.step_seconds,
            again(self.requests, requests),
            again(self.prompt_tokens, prompt_tokens),
            again(self.output_tokens, output_tokens),
        )

    def in_blocks(self, block_seconds: float) -> LoadPaths:
        """Means over blocks of so many whole steps, at least one; what is left over is its own."""
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
    """Forecast three loads of one clock and draw their futures together."""
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
    """Paths with the quantiles of the forecasts, coupled as past errors were.

    Of a past shorter than two horizons little is to be learned: there all goes up and down
    together, which asks for the most at once.

    Args:
        drivers: The past of requests, prompt tokens and output tokens.
        forecasts: What was forecast of each, equally long.
        count: How many paths.

    Raises:
        ValueError: The series do not end together, or the forecasts are of different lengths.
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
    """The quantile of each rank in each step; beyond the outermost quantiles lies nothing."""
    order = np.argsort(made.quantiles)
    levels = np.asarray(made.quantiles)[order]
    even = (np.arange(len(ranks)) + 0.5) / len(ranks)
    # What each of the quantiles asked for counts in that of each rank, by linear interpolation.
    shares = np.stack([np.interp(even, levels, each) for each in np.eye(len(levels))], axis=-1)
    paths: Floats = np.take_along_axis(shares @ made.values[order], ranks, axis=0)
    return paths


def _error_ranks(
    drivers: Sequence[LoadSeries], forecasts: Sequence[LoadForecast], horizon: int, count: int
) -> NDArray[np.int64]:
    """`[driver, path, step]`: the rank of a past error among those of the same driver and step."""
    length = min(len(series.values) for series in drivers)
    pasts = [series.values[-length:] for series in drivers]
    # All drivers are held against the same past, so that their errors are of one kind.
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
    # Drawn from a fixed seed: the same past gives the same plan.
    rng = np.random.default_rng(0)
    origins = np.round(np.linspace(first, last, count)).astype(np.int64)
    ranks = np.empty((len(drivers), horizon, count), dtype=np.int64)
    # Equal errors (a load of zeros) are put in the same order for all drivers and steps.
    chance = np.argsort(rng.random(count))
    for number, values in enumerate(pasts):
        errors = np.ascontiguousarray(_errors(values, origins, horizon, period)[chance].T)
        order = chance[np.argsort(errors, axis=1, kind="stable")]
        np.put_along_axis(ranks[number], order, np.arange(count)[None, :], axis=1)
    return np.swapaxes(ranks, 1, 2)


def _errors(values: Floats, origins: NDArray[np.int64], horizon: int, period: int) -> Floats:
    """What came after each origin, less the level before it, or less the same time a period ago.

    `[origin, step]`; an unknown step has the error of the one before it.
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
