"""Width of the bands around a stacked forecast, from its past errors."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from disagg_cluster.planner.forecast.quantile_regression import quantile_regression
from disagg_cluster.planner.forecast.running_means import Indices, RunningMeans
from disagg_cluster.planner.history.load_series import Floats

_VOLATILITY_WINDOWS = (6, 48)
_PRIOR_SAMPLES = 2.0


@dataclass(frozen=True, slots=True)
class Situation:
    """Features that set the width of bands: volatility and level of the load, expert disagreement.

    `features[horizon, origin, feature]`: the first is constant, the others have the unit of the
    values.
    """

    features: Floats

    @classmethod
    def of(
        cls, values: Floats, origins: Indices, centre: Floats, points: Floats, weights: Floats
    ) -> Situation:
        """Compute the features at each origin."""
        changes = np.abs(np.diff(values, prepend=values[:1]))
        changes[0] = 0.0
        if not np.isfinite(changes).any():
            changes = np.zeros(len(values))
        volatility = RunningMeans(changes)
        ones = np.ones_like(centre)
        variance = np.matmul((points - centre[..., None]) ** 2, weights[..., None])[..., 0]
        rows = [
            ones,
            *(ones * volatility.trailing(width, origins) for width in _VOLATILITY_WINDOWS),
            centre,
            np.sqrt(variance),
        ]
        return cls(np.stack(rows, axis=-1))

    def times(self, sizes: Floats) -> Situation:
        """Multiply each feature by `sizes[horizon, feature]`."""
        return Situation(self.features * sizes[:, None])

    def errors(self, coefficients: Floats) -> Floats:
        """Predict the quantiles of the error, `[horizon, quantile, origin]`."""
        found: Floats = np.matmul(coefficients, np.swapaxes(self.features, 1, 2))
        return found


def feature_sizes(values: Floats, scale: Floats) -> Floats:
    """Factors `[horizon, feature]` that bring features to the size of scaled errors, about 1.

    Errors are measured in units of `scale[horizon]`; the load's level stays at about 1 or below.
    """
    level = np.minimum(1.0, scale / max(float(np.nanmean(values)), np.finfo(float).tiny))
    volatility = [1 / scale] * len(_VOLATILITY_WINDOWS)
    return np.stack([np.ones_like(scale), *volatility, level / scale, 1 / scale], axis=-1)


def error_coefficients(
    past: Situation, errors: Floats, sample_weights: Floats, quantiles: Floats
) -> Floats:
    """Linear coefficients of the quantiles of the error, `[horizon, quantile, feature]`.

    They are shrunk towards the plain quantiles of the past errors.

    Args:
        past: Features at the past origins.
        errors: `[horizon, origin]` in units of the scale: outcome minus a forecast that was made
            without knowing it.
        sample_weights: `[horizon, origin]`; 0 where the outcome is unknown.
        quantiles: Quantiles to estimate, ascending.
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


def student_widening(quantiles: Floats, independent: Floats) -> Floats:
    """Factor by which bands widen where few errors support them, `[horizon, quantile]`.

    Student's quantile divided by the normal one, to first order (Abramowitz and Stegun 26.7.5),
    with as many degrees of freedom as there are non-overlapping errors.
    """
    normal = np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles])
    widening: Floats = 1.0 + (normal**2 + 1) / (4 * np.maximum(independent, 1.0)[:, None])
    return widening
