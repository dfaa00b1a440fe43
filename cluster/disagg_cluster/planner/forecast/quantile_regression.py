"""Linear quantile regression, many problems in a batch."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.history.load_series import Floats

_ROUNDS = 12
_SMOOTHING = 1e-2


def quantile_regression(
    features: Floats,
    targets: Floats,
    sample_weights: Floats,
    quantiles: Floats,
    prior: Floats,
    prior_weight: float,
) -> Floats:
    """Coefficients `[problem, quantile, feature]` of the quantiles of `targets`.

    Minimises the pinball loss (Koenker and Bassett 1978) with a ridge towards `prior`, by the
    majorise-minimise iteration of Hunter and Lange (2000).

    Args:
        features: `[problem, sample, feature]`, about 1 in size.
        targets: `[problem, sample]`.
        sample_weights: `[problem, sample]`; 0 excludes a sample.
        quantiles: Quantiles to fit, each in (0, 1).
        prior: `[problem, quantile, feature]`; also where the iteration starts.
        prior_weight: Weight of the prior, in samples.
    """
    width = features.shape[-1]
    weighted = features * sample_weights[..., None]
    # Products of the features of each sample, computed once; a round only weights them.
    products = (weighted[..., None] * features[..., None, :]).reshape(*weighted.shape[:2], -1)
    ridge = np.eye(width) * prior_weight
    asymmetry = (2 * quantiles - 1)[None, :, None]
    coefficients = prior
    for _ in range(_ROUNDS):
        fitted = np.matmul(coefficients, np.swapaxes(features, 1, 2))
        curvature = 1.0 / (_SMOOTHING + np.abs(targets[:, None] - fitted))
        left = np.matmul(curvature, products).reshape(*prior.shape, width)
        right = np.matmul(curvature * targets[:, None] + asymmetry, weighted)
        coefficients = np.linalg.solve(left + ridge, (right + prior_weight * prior)[..., None])[
            ..., 0
        ]
    return coefficients
