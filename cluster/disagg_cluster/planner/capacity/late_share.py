"""Correction factor for a formula's capacity, learned from late requests in a cluster.

The formula predicts the share of late requests at a load. If reality follows the same curve with
all loads multiplied by a factor, observed late shares determine that factor. Its logarithm has a
normal prior around 0, as wide as the error of the costs, and each window adds the likelihood of
its late requests. Requests of a window tend to be late together, so a window counts only as its
effective number of independent requests (design effect, Kish 1965). Without observations the
factor is 1; evidence moves it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.problems import not_in_range, refuse

# How strongly lateness correlates between the requests of a window.
_CORRELATION = 0.05
_REACH = 4.0
_POINTS = 161
_LEAST_SHARE = 1e-3
_DEVIATIONS = 1.645


@dataclass(frozen=True, slots=True)
class LateWindow:
    """A time window: its load, its number of requests, and how many of them missed the target.

    Raises:
        ValueError: A value is negative or no number, or more requests were late than there were;
            the message lists all problems.
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
    """Real capacity over the formula's, and the ends of its 90 % interval."""

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
        windows: Observations of the pool at its present size, in any order; windows without
            requests are ignored.
        expected_late_share: The formula's share of late requests at a load of this pool.
        prior_deviation: Standard deviation of the factor's logarithm before any observation: the
            relative error of the costs.

    Raises:
        ValueError: The deviation is not a number above 0.
    """
    refuse(not_in_range({"prior_deviation": prior_deviation}, above=True))
    logarithms = np.linspace(-_REACH, _REACH, _POINTS) * prior_deviation
    weights = -0.5 * (logarithms / prior_deviation) ** 2
    for window in windows:
        if not window.requests:
            continue
        counted = window.requests / (1 + max(window.requests - 1, 0.0) * _CORRELATION)
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
