"""One forecast in one scale: experts stacked by their past errors, with bands from those left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.forecast.bands import (
    Situation,
    error_coefficients,
    feature_sizes,
    students_widening,
)
from disagg_cluster.planner.forecast.experts import expert_points, possible_seasons
from disagg_cluster.planner.forecast.past_origins import PastOrigins
from disagg_cluster.planner.forecast.running_means import Indices
from disagg_cluster.planner.forecast.season_test import season_helps
from disagg_cluster.planner.forecast.stacking import stacking_weights
from disagg_cluster.planner.history.load_series import Floats

# Half of what Student says: errors that overlap say something, too.
_WIDENING = 0.5
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Projection:
    """Quantiles of the coming steps, and how well the same way did before.

    `values` and `losses` are `[quantile, step]`, both in the unit of the load; losses are the mean
    pinball loss of past forecasts, made without knowing what came.
    """

    values: Floats
    losses: Floats
    seasons: tuple[str, ...]
    experts: tuple[tuple[str, float], ...]


def project(
    values: Floats, step_seconds: float, horizon_steps: int, quantiles: Floats, power: float
) -> Projection:
    """Forecast `values ** power`, and raise what comes to 1 / `power`.

    Loads scatter more the higher they are; in the right power they scatter alike at all heights.
    Powers know no unit, and zero is a number among others (as it is not to a logarithm).
    """
    scaled = values**power
    length = len(values)
    past = PastOrigins.of(scaled, horizon_steps)
    seasons = possible_seasons(length, step_seconds)
    experts = expert_points(scaled, past.origins, past.horizons, seasons)
    used = tuple(season for season in seasons if season_helps(past, experts, season))
    for season in seasons:
        if season not in used:
            experts = experts.without(season.name)
    # Before it was seen once, a season could not show what it is worth.
    past = past.since(max((season.period_steps for season in used), default=0))
    # Errors are measured in those that the last value makes.
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

    def to_load(of: Floats) -> Floats:
        loads: Floats = np.maximum(of, 0.0) ** (1 / power)
        return loads

    missed = past.outcomes[:, None] ** (1 / power) - to_load(
        centre[:, None] + situation.errors(coefficients) * scale[:, None, None]
    )
    pinball = np.maximum(quantiles[:, None] * missed, (quantiles[:, None] - 1) * missed)

    now = np.array([length - 1])
    ahead = np.arange(1, horizon_steps + 1)

    def at_each_step(of: Floats) -> Floats:
        """`[horizon, …]` at every step, linear in the logarithm of how far ahead it is."""
        columns = of.reshape(len(of), -1).T
        spread = [np.interp(np.log(ahead), np.log(past.horizons), each) for each in columns]
        return np.stack(spread, axis=-1).reshape(horizon_steps, *of.shape[1:])

    coming = expert_points(scaled, now, ahead, used).points
    shares = at_each_step(weights)
    path = np.matmul(coming, shares[..., None])[..., 0]
    present = Situation.of(scaled, now, path, coming, shares)
    # Scales of two horizons may be worlds apart, where one saw nights only: between them goes what
    # a feature does to the load, not to the error in units of its scale.
    effects = coefficients * (sizes * scale[:, None])[:, None]
    offsets = np.sort(present.errors(at_each_step(effects))[..., 0], axis=1)
    offsets = _widened(offsets, quantiles, at_each_step(past.independent))
    told = min(horizon_steps, max(1, round(_HOUR_SECONDS / step_seconds))) - 1
    return Projection(
        values=to_load(path + offsets).T,
        losses=at_each_step(past.mean(pinball)).T,
        seasons=tuple(season.name for season in used),
        experts=tuple(zip(experts.names, map(float, shares[told]), strict=True)),
    )


def _held_out(
    folds: Sequence[tuple[Indices, Floats]],
    points: Floats,
    weights: Floats,
    elsewhere: Sequence[Floats],
) -> Floats:
    """What the stack says at each origin, weighed by errors of other times.

    Errors of a stack that was fitted to them would be too small. Where nothing else is known, the
    weights of all times stand in.

    Args:
        folds: Runs of origins, and sample weights of the outcomes that lie clear of each.
        points: `[horizon, origin, expert]`.
        weights: `[horizon, expert]`, by all outcomes.
        elsewhere: The same by the outcomes that lie clear of each run.
    """
    centre: Floats = np.matmul(points, weights[..., None])[..., 0]
    for (fold, clear), others in zip(folds, elsewhere, strict=True):
        known = clear.sum(axis=1) > 0
        used = np.where(known[:, None], others, weights)
        centre[:, fold] = np.matmul(points[:, fold], used[..., None])[..., 0]
    return centre


def _widened(offsets: Floats, quantiles: Floats, independent: Floats) -> Floats:
    """Bands as far from their middle as few errors leave it open."""
    of_middle = np.array([np.interp(0.5, quantiles, each) for each in np.eye(len(quantiles))])
    middle = (offsets @ of_middle)[:, None]
    more = _WIDENING * (students_widening(quantiles, independent) - 1)
    widened: Floats = middle + (offsets - middle) * (1 + more)
    return widened
