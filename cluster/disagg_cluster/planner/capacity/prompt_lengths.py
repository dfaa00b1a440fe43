"""Distribution of lengths over requests."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from disagg_cluster.planner.history.load_series import Floats

POINTS = 200


@lru_cache(maxsize=256)
def length_points(mean_tokens: float, dispersion: float, points: int = POINTS) -> Floats:
    """Equally likely lengths that represent the distribution, in rising order.

    Log-normal, as lengths of real requests nearly are, with this mean and squared coefficient of
    variation: the middle quantiles of equally likely parts, scaled to the mean. At least one token
    each.
    """
    spread = float(np.sqrt(np.log1p(dispersion)))
    normal = NormalDist()
    middles = (np.arange(points) + 0.5) / points
    lengths = np.exp(spread * np.array([normal.inv_cdf(float(p)) for p in middles]))
    found: Floats = np.maximum(mean_tokens * lengths / lengths.mean(), 1.0)
    found.setflags(write=False)
    return found
