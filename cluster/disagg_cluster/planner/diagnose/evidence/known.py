"""Sums, means and medians of what is known: NaN is unknown, and so is what only holds NaN."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.evidence.series_window import Floats


def known_sum(values: Floats, axis: int = -1) -> Floats:
    """The sum of what is known along an axis; NaN where nothing is."""
    known = np.isfinite(values)
    return np.where(known.any(axis=axis), np.where(known, values, 0.0).sum(axis=axis), np.nan)


def known_mean(values: Floats, axis: int = -1) -> Floats:
    """The mean of what is known along an axis; NaN where nothing is."""
    counts = np.isfinite(values).sum(axis=axis)
    return known_sum(values, axis) / np.where(counts > 0, counts, 1)


def known_median(values: Floats) -> Floats:
    """The median of what is known along the last axis; NaN where nothing is."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    known = np.isfinite(values)
    ranked = np.sort(np.where(known, values, np.nan), axis=-1)  # NaN come last
    counts = known.sum(axis=-1)
    length = values.shape[-1]
    # Rows one after the other: `take_along_axis` costs more than the sort of a short one.
    begins = np.arange(0, ranked.size, length).reshape(counts.shape)
    upper = ranked.ravel()[begins + counts // 2 % length]
    lower = ranked.ravel()[begins + np.maximum(counts - 1, 0) // 2]
    return np.where(counts > 0, (lower + upper) / 2, np.nan)


def most_known(values: Floats) -> float:
    """The largest of all that is known; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")
