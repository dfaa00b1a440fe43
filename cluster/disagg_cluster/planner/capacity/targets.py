"""Latency targets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from disagg_cluster.planner.capacity.problems import refuse

_LEAST_ATTAINMENT = 0.5


@dataclass(frozen=True, slots=True)
class Targets:
    """Latencies, and the share of requests that has to be within each of them.

    `ttft_seconds` is from a request's arrival to its first token, `itl_seconds` the mean time
    between two of its tokens (time per output token). A target that is not set is infinite.

    Raises:
        ValueError: A target is not above 0, or the attainment not from 0.5 to below 1; lists all.
    """

    ttft_seconds: float
    itl_seconds: float
    attainment: float = 0.95

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}, not a time above 0"
            for name, value in (
                ("ttft_seconds", self.ttft_seconds),
                ("itl_seconds", self.itl_seconds),
            )
            if math.isnan(value) or value <= 0
        ]
        if not _LEAST_ATTAINMENT <= self.attainment < 1:
            problems.append(f"attainment is {self.attainment}, not from 0.5 to below 1")
        refuse(problems)

    @property
    def late_share(self) -> float:
        """The share of requests that may miss a target."""
        return 1 - self.attainment

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean that cover the attainment, if normal."""
        return NormalDist().inv_cdf(self.attainment)
