"""A slope that is robust to bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import Floats

LEAST_POINTS = 8
# 95 % quantile of the normal distribution.
_Z_95 = 1.645


@dataclass(frozen=True, slots=True)
class RobustSlope:
    """Change per unit of time; `low` and `high` are its 90 % confidence interval."""

    middle: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the sign of the change is known."""
        return self.low > 0 or self.high < 0


def robust_slope(times: Floats, values: Floats) -> RobustSlope | None:
    """Median of all pairwise slopes and its interval (Theil 1950, Sen 1968).

    NaN values are left out; None where fewer than eight remain. The interval assumes independent
    values: pass means over windows longer than the noise is correlated.
    """
    known = np.isfinite(values)
    count = int(known.sum())
    if count < LEAST_POINTS:
        return None
    at, of = times[known], values[known]
    first, second = np.triu_indices(count, 1)
    apart = at[second] - at[first]
    slopes = np.sort((of[second] - of[first])[apart > 0] / apart[apart > 0])
    if not len(slopes):
        return None
    half = _Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18) / 2
    middle = (len(slopes) - 1) / 2
    low, high = max(0, math.floor(middle - half)), min(len(slopes) - 1, math.ceil(middle + half))
    return RobustSlope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))
