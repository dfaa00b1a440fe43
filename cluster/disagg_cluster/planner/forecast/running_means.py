"""Means over windows of a series with gaps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.history.load_series import Floats

Indices = NDArray[np.int64]


class RunningMeans:
    """Means over windows of any width, each in one pass, without the gaps.

    Args:
        values: Evenly spaced, NaN in gaps; the first must be known.
    """

    def __init__(self, values: Floats) -> None:
        known = np.isfinite(values)
        self._sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
        self._counts = np.concatenate([[0], np.cumsum(known)])
        self._last_known = values[np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))]

    def trailing(self, width: int, at: Indices | None = None) -> Floats:
        """Mean of the last `width` values at the indices `at`, or at each index.

        Where the window holds no known value, it is the last known value.
        """
        at = np.arange(len(self._last_known)) if at is None else at
        sums, counts = self._between(np.maximum(0, at + 1 - width), at + 1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), self._last_known[at])

    def centred(self, width: int) -> Floats:
        """Mean of the `width` values around each index; NaN where none is known."""
        at = np.arange(len(self._last_known))
        half = width // 2
        sums, counts = self._between(np.maximum(0, at - half), np.minimum(len(at), at + half + 1))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def _between(self, start: Indices, end: Indices) -> tuple[Floats, Floats]:
        return self._sums[end] - self._sums[start], self._counts[end] - self._counts[start]
