"""Convex combination of experts by their past errors."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.history.load_series import Floats

_ROUNDS = 300
_STEP = 4.0
_MOST_LOG_STEP = 3.0
_CLIPPED_AT = 4.0
_SHRINKAGE = 0.1
_PRIOR_SHARPNESS = 2.0


def stacking_weights(errors: Floats, sample_weights: Floats) -> Floats:
    """Weights of the experts at each horizon, `[…, horizon, expert]`, non-negative, summing to 1.

    They minimise the weighted squared error of the combination (Breiman 1996, stacked
    regressions), shrunk towards weights from each expert's own error, which guards against chance
    where errors are few. Neighbouring horizons share their errors.

    Args:
        errors: `[horizon, origin, expert]`, about 1 in size; outliers are clipped, so that one
            burst does not decide the weights.
        sample_weights: `[…, horizon, origin]`; leading axes are solved in one batch, for speed.
    """
    clipped = np.clip(errors, -_CLIPPED_AT, _CLIPPED_AT)
    across = np.swapaxes(clipped, 1, 2)
    totals = np.maximum(sample_weights.sum(axis=-1), np.finfo(float).tiny)
    gram = np.matmul(across * sample_weights[..., None, :], clipped) / totals[..., None, None]
    gram = np.einsum("gh,...hef->...gef", _neighbours(len(errors)), gram)
    experts = gram.shape[-1]
    own = np.maximum(np.einsum("...ee->...e", gram), 1e-12)
    best = own.min(axis=-1, keepdims=True)
    prior = (own / best) ** -_PRIOR_SHARPNESS
    prior /= prior.sum(axis=-1, keepdims=True)
    shrinkage = _SHRINKAGE * best * experts
    return _on_the_simplex(gram + np.eye(experts) * shrinkage[..., None], shrinkage * prior)


def _neighbours(horizons: int) -> Floats:
    apart = np.arange(horizons)[:, None] - np.arange(horizons)
    kernel: Floats = np.exp(-0.5 * apart.astype(np.float64) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    return kernel


def _on_the_simplex(quadratic: Floats, linear: Floats) -> Floats:
    """Minimise w'Qw/2 − b'w by exponentiated gradient (Kivinen and Warmuth 1997), in a batch."""
    weights = np.full(linear.shape, 1.0 / linear.shape[-1])
    rate = -_STEP / np.maximum(np.abs(quadratic).max(axis=(-2, -1)), 1e-12)[..., None]
    quadratic, linear = rate[..., None] * quadratic, rate * linear
    for _ in range(_ROUNDS):
        step = np.matmul(quadratic, weights[..., None])[..., 0] - linear
        step -= (step * weights).sum(axis=-1, keepdims=True)
        # np.clip is slower: there are many rounds on small arrays.
        weights *= np.exp(np.minimum(np.maximum(step, -_MOST_LOG_STEP), _MOST_LOG_STEP))
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights
