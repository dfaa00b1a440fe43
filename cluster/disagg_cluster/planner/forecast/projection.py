"""A forecast in one scale: experts stacked by past errors, bands from the remaining errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.forecast.bands import (
    Situation,
    error_coefficients,
    feature_sizes,
    student_widening,
)
from disagg_cluster.planner.forecast.experts import Season, expert_points, possible_seasons
from disagg_cluster.planner.forecast.past_origins import PastOrigins
from disagg_cluster.planner.forecast.running_means import Indices
from disagg_cluster.planner.forecast.season_test import season_helps
from disagg_cluster.planner.forecast.stacking import stacking_weights
from disagg_cluster.planner.history.load_series import Floats

# Half of Student's widening: overlapping errors carry information too.
_WIDENING = 0.5
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Projection:
    """Quantiles of the coming steps, and how well the same method did in the past.

    `values` and `losses` are `[quantile, step]`, both in the unit of the load; losses are the mean
    pinball loss of past forecasts made without knowing the outcome.
    """

    values: Floats
    losses: Floats
    seasons: tuple[str, ...]
    experts: tuple[tuple[str, float], ...]


def project(
    values: Floats,
    step_seconds: float,
    horizon_steps: int,
    quantiles: Floats,
    power: float,
    launch: int = 0,
) -> Projection:
    """Forecast `values ** power`, and raise the result to 1 / `power`.

    Loads vary more the higher they are; raised to the right power their variance is the same at
    all levels. Powers do not depend on the unit, and unlike logarithms they accept zero.

    Where the load began in the step `launch`, the many outcomes before it do not outweigh the few
    since.
    """
    scaled = values**power
    stack = _stacked(scaled, step_seconds, horizon_steps, quantiles, launch)
    past = stack.past

    def to_load(of: Floats) -> Floats:
        loads: Floats = np.maximum(of, 0.0) ** (1 / power)
        return loads

    missed = past.outcomes[:, None] ** (1 / power) - to_load(stack.past_quantiles)
    pinball = np.maximum(quantiles[:, None] * missed, (quantiles[:, None] - 1) * missed)
    shares = _at_each_step(stack.weights, past.horizons, horizon_steps)
    hour_ahead = min(horizon_steps, max(1, round(_HOUR_SECONDS / step_seconds))) - 1
    return Projection(
        values=to_load(_coming(scaled, stack, shares, quantiles)).T,
        losses=_at_each_step(past.mean(pinball), past.horizons, horizon_steps).T,
        seasons=tuple(season.name for season in stack.seasons),
        experts=tuple(zip(stack.names, map(float, shares[hour_ahead]), strict=True)),
    )


@dataclass(frozen=True, slots=True)
class _Stack:
    """What past origins teach, in the scale of the forecast.

    `weights` are `[horizon, expert]`. `effects` are what a situation's features add to the errors
    of the stack, `[horizon, quantile, feature]`. `past_quantiles` are its forecasts at past
    origins, without knowing the outcomes, `[horizon, quantile, origin]`.
    """

    past: PastOrigins
    seasons: tuple[Season, ...]
    names: tuple[str, ...]
    weights: Floats
    effects: Floats
    past_quantiles: Floats


def _stacked(
    scaled: Floats, step_seconds: float, horizon_steps: int, quantiles: Floats, launch: int
) -> _Stack:
    """Weigh the experts by their past errors, and learn what errors are left."""
    past = PastOrigins.of(scaled, horizon_steps).balanced(launch)
    seasons = possible_seasons(len(scaled), step_seconds)
    experts = expert_points(scaled, past.origins, past.horizons, seasons)
    used = tuple(season for season in seasons if season_helps(past, experts, season))
    for season in seasons:
        if season not in used:
            experts = experts.without(season.name)
    # Before its first full period a season has no forecasts to score.
    past = past.since(max((season.period_steps for season in used), default=0))
    # Errors are measured in units of the last-value expert's mean error.
    scale = past.mean(np.abs(experts.points[..., 0] - past.outcomes))
    scale = np.maximum(scale, 1e-9 * float(np.nanmean(scaled)) + 1e-100)
    errors = (experts.points - past.outcomes[..., None]) / scale[:, None, None]
    folds = past.folds()
    weights, *elsewhere = stacking_weights(
        errors, np.stack([past.sample_weights, *(others for _, others in folds)])
    )
    centre = _held_out(folds, experts.points, weights, elsewhere)
    sizes = feature_sizes(scaled, scale)
    situation = Situation.of(scaled, past.origins, centre, experts.points, weights).times(sizes)
    coefficients = error_coefficients(
        situation, (past.outcomes - centre) / scale[:, None], past.sample_weights, quantiles
    )
    return _Stack(
        past,
        used,
        experts.names,
        weights,
        # Scales of neighbouring horizons may differ greatly, where one has outcomes at night only.
        # So effects are interpolated in units of the load, not in units of each horizon's scale.
        coefficients * (sizes * scale[:, None])[:, None],
        centre[:, None] + situation.errors(coefficients) * scale[:, None, None],
    )


def _coming(scaled: Floats, stack: _Stack, shares: Floats, quantiles: Floats) -> Floats:
    """Return the quantiles of the coming steps, `[step, quantile]`, by each expert's `shares`."""
    now, horizons, steps = np.array([len(scaled) - 1]), stack.past.horizons, len(shares)
    coming = expert_points(scaled, now, np.arange(1, steps + 1), stack.seasons).points
    path = np.matmul(coming, shares[..., None])[..., 0]
    present = Situation.of(scaled, now, path, coming, shares)
    effects = _at_each_step(stack.effects, horizons, steps)
    offsets = np.sort(present.errors(effects)[..., 0], axis=1)
    independent = _at_each_step(stack.past.independent, horizons, steps)
    return np.asarray(path + _widened(offsets, quantiles, independent))


def _at_each_step(of: Floats, horizons: Indices, steps: int) -> Floats:
    """`[horizon, …]` at every step, linear in the logarithm of how far ahead it is."""
    ahead = np.log(np.arange(1, steps + 1))
    columns = of.reshape(len(of), -1).T
    spread = [np.interp(ahead, np.log(horizons), each) for each in columns]
    return np.stack(spread, axis=-1).reshape(steps, *of.shape[1:])


def _held_out(
    folds: Sequence[tuple[Indices, Floats]],
    points: Floats,
    weights: Floats,
    elsewhere: Sequence[Floats],
) -> Floats:
    """Out-of-sample forecast of the stack at each origin: weights come from other times.

    In-sample errors would be too small. Where no other outcomes are known, the weights from all
    outcomes are used.

    Args:
        folds: Runs of origins, each with the sample weights of outcomes that do not overlap it.
        points: `[horizon, origin, expert]`.
        weights: `[horizon, expert]`, from all outcomes.
        elsewhere: For each run, weights from the outcomes that do not overlap it.
    """
    centre: Floats = np.matmul(points, weights[..., None])[..., 0]
    for (fold, clear), others in zip(folds, elsewhere, strict=True):
        known = clear.sum(axis=1) > 0
        used = np.where(known[:, None], others, weights)
        centre[:, fold] = np.matmul(points[:, fold], used[..., None])[..., 0]
    return centre


def _widened(offsets: Floats, quantiles: Floats, independent: Floats) -> Floats:
    """Offsets moved away from their middle, more where fewer errors support them."""
    of_middle = np.array([np.interp(0.5, quantiles, each) for each in np.eye(len(quantiles))])
    middle = (offsets @ of_middle)[:, None]
    more = _WIDENING * (student_widening(quantiles, independent) - 1)
    widened: Floats = middle + (offsets - middle) * (1 + more)
    return widened
