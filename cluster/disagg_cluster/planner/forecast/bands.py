"""How far off a stack was, and so how wide its bands are."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from disagg_cluster.planner.forecast.quantile_regression import quantile_regression
from disagg_cluster.planner.forecast.running_means import Indices, RunningMeans
from disagg_cluster.planner.history.load_series import Floats

_RESTLESS_WINDOWS = (6, 48)
_PRIOR_SAMPLES = 2.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What bands depend on: how restless the load is, how high, how much the experts disagree.

    `features[horizon, origin, feature]`, the first of them constant, the others in the unit of the
    values.
    """

    features: Floats

    @classmethod
    def of(
        cls, values: Floats, origins: Indices, centre: Floats, points: Floats, weights: Floats
    ) -> Situation:
        """At each origin."""
        changes = np.abs(np.diff(values, prepend=values[:1]))
        changes[0] = 0.0
        if not np.isfinite(changes).any():
            changes = np.zeros(len(values))
        restless = RunningMeans(changes)
        ones = np.ones_like(centre)
        apart = np.sqrt(np.matmul((points - centre[..., None]) ** 2, weights[..., None])[..., 0])
        rows = [
            ones,
            *(ones * restless.trailing(width, origins) for width in _RESTLESS_WINDOWS),
            centre,
            apart,
        ]
        return cls(np.stack(rows, axis=-1))

    def times(self, sizes: Floats) -> Situation:
        """Each feature in other units, `sizes[horizon, feature]`."""
        return Situation(self.features * sizes[:, None])

    def errors(self, coefficients: Floats) -> Floats:
        """The quantiles of the error, `[horizon, quantile, origin]`."""
        found: Floats = np.matmul(coefficients, np.swapaxes(self.features, 1, 2))
        return found


def feature_sizes(values: Floats, scale: Floats) -> Floats:
    """`[horizon, feature]`: what features are multiplied by to be about 1 beside errors.

    Errors are measured in `scale[horizon]`; how high a load is counts for no more than they do.
    """
    level = np.minimum(1.0, scale / max(float(np.nanmean(values)), np.finfo(float).tiny))
    restless = [1 / scale] * len(_RESTLESS_WINDOWS)
    return np.stack([np.ones_like(scale), *restless, level / scale, 1 / scale], axis=-1)


def error_coefficients(
    past: Situation, errors: Floats, sample_weights: Floats, quantiles: Floats
) -> Floats:
    """How quantiles of the error follow from the situation: `[horizon, quantile, feature]`.

    Linear, and shrunk to the plain quantiles of the past errors.

    Args:
        past: At the origins of the past.
        errors: `[horizon, origin]` in units of the scale, outcome less forecast, made without
            knowing the outcome.
        sample_weights: `[horizon, origin]`; 0 where the outcome is not known.
        quantiles: Those wanted, ascending.
    """
    horizons, _, width = past.features.shape
    plain = np.zeros((horizons, len(quantiles), width))
    for horizon in range(horizons):
        known = sample_weights[horizon] > 0
        if known.any():
            plain[horizon, :, 0] = np.quantile(errors[horizon][known], quantiles)
    prior_weight = _PRIOR_SAMPLES
    return quantile_regression(
        past.features, errors, sample_weights, quantiles, plain, prior_weight
    )


def students_widening(quantiles: Floats, independent: Floats) -> Floats:
    """By how much bands known from few errors are wider, `[horizon, quantile]`.

    Student's quantile over the normal one, to the first order (Abramowitz and Stegun 26.7.5), with
    as many degrees of freedom as there were errors that do not overlap.
    """
    normal = np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles])
    widening: Floats = 1.0 + (normal**2 + 1) / (4 * np.maximum(independent, 1.0)[:, None])
    return widening
