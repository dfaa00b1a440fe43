"""Forecasts a load from its past, with bands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from disagg_cluster.planner.forecast.experts import DAY_SECONDS
from disagg_cluster.planner.forecast.load_forecast import (
    LEAST_HISTORY_PER_HORIZON,
    LEAST_OBSERVATIONS,
    PATH_QUANTILES,
    QUANTILES,
    LoadForecast,
    UndecidedForecast,
)
from disagg_cluster.planner.forecast.projection import Projection, project
from disagg_cluster.planner.history.load_series import Floats, LoadSeries
from disagg_exporter.model.counted import counted

Forecasting = Callable[[LoadSeries, int, Sequence[float]], LoadForecast | UndecidedForecast]
"""Forecasts a series a number of steps ahead, in the given quantiles."""
_POWERS = (0.5, 1.0)
_SHARPNESS = 20.0
# Four weeks of minutes.
_MOST_STEPS = 40_320
# Before a launch: at most this share of the load's square roots, which no single spike decides,
_MOST_BEFORE_LAUNCH = 0.01
# for at least this share of the history,
_LEAST_BEFORE_LAUNCH = 0.1
# and for more than so many times the longest stretch that was as quiet later.
_LEAST_QUIET_RATIO = 2
# The load before a rise, over that since, at most, by means of square roots,
_MOST_BEFORE_RISE = 0.2
# for at least this share of the history.
_LEAST_BEFORE_RISE = 0.1
# Nearly all of what came before is below nearly all that has come since.
_NEARLY_ALL_BEFORE, _NEARLY_ALL_SINCE = 0.99, 0.05


def forecast(
    series: LoadSeries, horizon_steps: int, quantiles: Sequence[float] = QUANTILES
) -> LoadForecast | UndecidedForecast:
    """Quantiles of the load in each of the next `horizon_steps` steps.

    Two forecasts are made in different scales, each with bands from its own past errors, and
    averaged: the scale whose past quantiles had the smaller pinball loss weighs by far the most.
    Only the last 40,320 steps of a history are used, and of a model that was launched in it only
    what follows the launch, or twice the horizon if that is longer. What came before a rise of the
    load that lasts is raised to its level. Unknown steps at its end are
    forecast too: bands are as wide as the distance from the last known step requires.

    Raises:
        ValueError: `horizon_steps` is below 1, or a quantile is not between 0 and 1.
    """
    if horizon_steps < 1:
        raise ValueError(f"a horizon of {horizon_steps} steps: it is 1 at least")
    if not quantiles or not all(0 < each < 1 for each in quantiles):
        raise ValueError(f"quantiles {tuple(quantiles)}: each lies between 0 and 1, ends excluded")
    recent = _from_first_known(series.values)[-_MOST_STEPS:]
    observations = int(np.isfinite(recent).sum())
    if observations < LEAST_OBSERVATIONS:
        return UndecidedForecast(
            f"{counted(observations, 'step')} of history; a forecast needs {LEAST_OBSERVATIONS}"
        )
    values = _from_first_known(recent)
    gap_steps = int(np.argmax(np.isfinite(values[::-1])))
    values = values[: len(values) - gap_steps]
    least_steps = LEAST_HISTORY_PER_HORIZON * (horizon_steps + gap_steps)
    if len(values) < least_steps:
        unknown = f" after {gap_steps} that are not known" if gap_steps else ""
        needed = "both together" if gap_steps else "the horizon"
        return UndecidedForecast(
            f"{counted(len(values), 'step')} of history; a forecast {horizon_steps} ahead{unknown} "
            f"needs {least_steps}, {LEAST_HISTORY_PER_HORIZON} times {needed}"
        )
    values, launch = _from_launch(values, least_steps)
    if not launch:
        values, launch = at_present_level(values, series.step_seconds)
    asked = np.asarray(quantiles, dtype=np.float64)
    order = np.argsort(asked)
    parts = [
        project(values, series.step_seconds, gap_steps + horizon_steps, asked[order], power, launch)
        for power in _POWERS
    ]
    shares = _shares(parts)
    merged = np.empty_like(parts[0].values)
    merged[order] = np.sort(sum(s * part.values for s, part in zip(shares, parts, strict=True)), 0)
    best = parts[int(np.argmax(shares.mean(axis=(1, 2))))]
    return LoadForecast(
        series.end_seconds,
        series.step_seconds,
        tuple(quantiles),
        merged[:, gap_steps:],
        observations,
        best.seasons,
        tuple(sorted(best.experts, key=lambda each: -each[1])),
    )


class SharedForecasts:
    """Caches forecasts, so that several callers share those of the same series.

    Each is made with all quantiles of `PATH_QUANTILES`; callers get the subset they ask for. The
    cache key is the identity of the series: clear it when newer series replace them.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[LoadSeries, int], LoadForecast | UndecidedForecast] = {}

    def forecast(
        self, series: LoadSeries, horizon_steps: int, quantiles: Sequence[float] = QUANTILES
    ) -> LoadForecast | UndecidedForecast:
        """Like the function `forecast`, but cached."""
        if not set(quantiles) <= set(PATH_QUANTILES):
            return forecast(series, horizon_steps, quantiles)
        asked = series, horizon_steps
        if asked not in self._made:
            self._made[asked] = forecast(series, horizon_steps, PATH_QUANTILES)
        made = self._made[asked]
        return made.of(quantiles) if isinstance(made, LoadForecast) else made

    def clear(self) -> None:
        """Drop all cached forecasts."""
        self._made.clear()


def _shares(parts: Sequence[Projection]) -> Floats:
    """Weights `[part, quantile, step]` of the parts, which sum to 1."""
    losses = np.stack([part.losses for part in parts])
    # Without any loss all parts weigh the same.
    relative = np.maximum(losses, 1e-12 * losses.max() + 1e-100)
    shares: Floats = (relative / relative.min(axis=0)) ** -_SHARPNESS
    shares /= shares.sum(axis=0)
    return shares


def _from_launch(values: Floats, least_steps: int) -> tuple[Floats, int]:
    """The steps since the load began, but at least so many, and which of them is the first.

    All, and 0, if it may have begun before them.

    Before a launch it was right to forecast nothing, which says nothing of the errors after it.
    """
    at = np.flatnonzero(np.isfinite(values))
    known = values[at]
    held = np.cumsum(np.sqrt(known))
    before = int(np.searchsorted(held, _MOST_BEFORE_LAUNCH * held[-1], side="right"))
    if not _LEAST_BEFORE_LAUNCH * len(known) <= before < len(known):
        return values, 0
    louder = np.flatnonzero(known[before:] > known[:before].mean())
    stretches = np.diff(louder, prepend=-1, append=len(known) - before) - 1
    if before <= _LEAST_QUIET_RATIO * stretches.max():
        return values, 0
    start = min(at[before], at[-LEAST_OBSERVATIONS], len(values) - least_steps)
    start = at[np.searchsorted(at, start, side="right") - 1]
    return values[start:], int(at[before] - start)


def _from_first_known(values: Floats) -> Floats:
    known = np.isfinite(values)
    return values[int(np.argmax(known)) :] if known.any() else values[:0]


def at_present_level(values: Floats, step_seconds: float) -> tuple[Floats, int]:
    """The steps, with those before a rise multiplied by it, and the first step since.

    All as they are, and 0, if the load has not risen that much.

    A model that gets a fiftieth of its traffic for a week, and then all of it, has a history that
    says little about the size of the load, but much about its course and its errors.
    """
    rise = _risen_at(values)
    day_steps = max(1, round(DAY_SECONDS / step_seconds))
    # Before a whole day was seen, a rise may be that of every morning.
    if rise is None or rise < day_steps:
        return values, 0
    raised = values.copy()
    raised[:rise] *= _growth(values, rise, day_steps)
    return raised, rise


def _risen_at(values: Floats) -> int | None:
    """The step that divides the history best into a lower and a higher load, if they differ so."""
    at = np.flatnonzero(np.isfinite(values))
    known = values[at]
    if len(known) < 2:
        return None
    before = np.arange(1, len(known))
    since = len(known) - before
    # Square roots, so that no single spike decides.
    held = np.cumsum(np.sqrt(known))
    low, high = held[:-1] / before, (held[-1] - held[:-1]) / since
    explained = before * since * np.square(high - low) * np.sign(high - low)
    best = int(np.argmax(explained))
    count = int(before[best])
    if not 0 < np.square(low[best]) <= _MOST_BEFORE_RISE * np.square(high[best]):
        return None
    if count < _LEAST_BEFORE_RISE * len(known) or len(known) - count < LEAST_OBSERVATIONS:
        return None
    most = np.quantile(known[:count], _NEARLY_ALL_BEFORE)
    return int(at[count]) if most < np.quantile(known[count:], _NEARLY_ALL_SINCE) else None


def _growth(values: Floats, rise: int, day_steps: int) -> float:
    """The load since a rise over that before, at the same times of day as far as both are known."""
    steps = np.arange(len(values))
    known, phases = np.isfinite(values), steps % day_steps
    before, since = known & (steps < rise), known & (steps >= rise)
    counts = np.bincount(phases[before], minlength=day_steps)
    sums = np.bincount(phases[before], weights=values[before], minlength=day_steps)
    both = since & (counts[phases] > 0)
    usual = float((sums[phases[both]] / counts[phases[both]]).sum())
    if usual > 0:
        return float(values[both].sum()) / usual
    return float(values[since].mean() / values[before].mean())
