"""Statistics of values some of which are unknown: NaN is unknown, as is a result of NaN alone."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.evidence.series_window import Floats


def known_sum(values: Floats, axis: int = -1) -> Floats:
    """The sum of known values along an axis; NaN without any."""
    known = np.isfinite(values)
    return np.where(known.any(axis=axis), np.where(known, values, 0.0).sum(axis=axis), np.nan)


def known_mean(values: Floats, axis: int = -1) -> Floats:
    """The mean of known values along an axis; NaN without any."""
    counts = np.isfinite(values).sum(axis=axis)
    return known_sum(values, axis) / np.where(counts > 0, counts, 1)


def known_median(values: Floats) -> Floats:
    """The median of known values along the last axis; NaN without any."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    known = np.isfinite(values)
    ranked = np.sort(np.where(known, values, np.nan), axis=-1)  # NaN come last
    counts = known.sum(axis=-1)
    length = values.shape[-1]
    # Index the flattened array: `take_along_axis` costs more than the sort of a short row.
    begins = np.arange(0, ranked.size, length).reshape(counts.shape)
    upper = ranked.ravel()[begins + counts // 2 % length]
    lower = ranked.ravel()[begins + np.maximum(counts - 1, 0) // 2]
    return np.where(counts > 0, (lower + upper) / 2, np.nan)


def most_known(values: Floats) -> float:
    """The largest known value; NaN without any."""
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")


def divergence(share: Floats, expected: Floats) -> Floats:
    """Kullback-Leibler divergence of an observed share from an expected one, per trial (binomial).

    Twice its sum over trials is the deviance, whose signed root is a z.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        met = np.where(share > 0, share * np.log(share / expected), 0.0)
        rest = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - expected)), 0.0)
    return np.asarray(met + rest)
