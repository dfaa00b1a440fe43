"""What a formula's capacity has to be multiplied by, for what a cluster has shown.

The formula says which share of the requests is late at a load. If the truth is the same with all
loads times a factor, the late shares that were seen tell the factor: its logarithm has a normal
prior around 0, as wide as the costs are unsure, and the likelihood of the late requests of each
window, of which no more are counted than so many as are not late together (design effect, Kish
1965). With nothing seen the factor is 1, and it leaves 1 as evidence comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.problems import not_in_range, refuse

# Requests of a window are late together: so far the fate of one tells that of another.
_ALIKE = 0.05
_REACH = 4.0
_POINTS = 161
_LEAST_SHARE = 1e-3
_DEVIATIONS = 1.645


@dataclass(frozen=True, slots=True)
class LateWindow:
    """A stretch of time: the load, how many requests there were, and how many missed the target.

    Raises:
        ValueError: A number is negative or none, or more were late than there were; says all.
    """

    requests_per_second: float
    requests: float
    late: float

    def __post_init__(self) -> None:
        problems = not_in_range(
            {
                "requests_per_second": self.requests_per_second,
                "requests": self.requests,
                "late": self.late,
            }
        )
        if self.late > self.requests:
            problems.append(f"late is {self.late}, of {self.requests} requests")
        refuse(problems)


@dataclass(frozen=True, slots=True)
class CapacityFactor:
    """The real capacity over the formula's, and the ends of its 90 % interval."""

    factor: float
    low: float
    high: float


def capacity_factor(
    windows: Sequence[LateWindow],
    expected_late_share: Callable[[float], float],
    prior_deviation: float,
) -> CapacityFactor:
    """Learn the factor from late shares.

    Args:
        windows: What was seen of the pool as it is, in any order; those without requests say
            nothing.
        expected_late_share: The formula's share of late requests at a load of this pool.
        prior_deviation: The standard deviation of the factor's logarithm before anything is seen:
            the costs' relative error.

    Raises:
        ValueError: The deviation is no number above 0.
    """
    refuse(not_in_range({"prior_deviation": prior_deviation}, above=True))
    logarithms = np.linspace(-_REACH, _REACH, _POINTS) * prior_deviation
    weights = -0.5 * (logarithms / prior_deviation) ** 2
    for window in windows:
        if not window.requests:
            continue
        counted = window.requests / (1 + max(window.requests - 1, 0.0) * _ALIKE)
        loads = window.requests_per_second / np.exp(logarithms)
        shares = np.clip(
            [expected_late_share(float(load)) for load in loads], _LEAST_SHARE, 1 - _LEAST_SHARE
        )
        late = window.late / window.requests
        weights += counted * (late * np.log(shares) + (1 - late) * np.log1p(-shares))
    likely = np.exp(weights - weights.max())
    likely /= likely.sum()
    mean = float(likely @ logarithms)
    deviation = float(np.sqrt(likely @ (logarithms - mean) ** 2))
    return CapacityFactor(
        *(float(np.exp(mean + side * _DEVIATIONS * deviation)) for side in (0, -1, 1))
    )
