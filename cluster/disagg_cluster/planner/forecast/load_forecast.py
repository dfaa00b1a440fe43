"""A forecast of the load, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.history.load_series import Floats

QUANTILES = (0.05, 0.5, 0.9, 0.95)
PATH_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantiles that futures are drawn from; a superset of `QUANTILES`."""
LEAST_OBSERVATIONS = 20
"""A forecast needs at least so many known steps."""
LEAST_HISTORY_PER_HORIZON = 2
"""A history must be so many times as long as the horizon, to provide past errors."""


@dataclass(frozen=True, slots=True)
class UndecidedForecast:
    """Why there is no forecast."""

    why: str


@dataclass(frozen=True, slots=True, eq=False)
class LoadForecast:
    """Quantiles of the load of each coming step.

    `values[quantile, step]` are rates per second, not negative, and do not decrease with the
    quantile. The first step begins at `start_seconds`. `seasons` are those that past errors
    justify; `experts` are the weights in the median an hour ahead (or at the end, if that is
    sooner), largest first.
    """

    start_seconds: float
    step_seconds: float
    quantiles: tuple[float, ...]
    values: Floats
    observations: int
    seasons: tuple[str, ...]
    experts: tuple[tuple[str, float], ...]

    @property
    def horizon_seconds(self) -> float:
        """How far ahead the forecast reaches."""
        return self.step_seconds * int(self.values.shape[1])

    def path(self, quantile: float) -> Floats:
        """Load that each step stays below with this probability; `KeyError` if not forecast."""
        try:
            found: Floats = self.values[self.quantiles.index(quantile)]
        except ValueError:
            raise KeyError(f"{quantile} is none of {self.quantiles}") from None
        return found

    def of(self, quantiles: Sequence[float]) -> LoadForecast:
        """The same with only these quantiles; `KeyError` if it lacks one."""
        values = np.stack([self.path(each) for each in quantiles])
        return replace(self, quantiles=tuple(quantiles), values=values)

    def at(self, seconds_ahead: float, quantile: float) -> float:
        """Load in the step so many seconds ahead; `KeyError` outside the horizon."""
        step = int(np.ceil(seconds_ahead / self.step_seconds)) - 1
        if not 0 <= step < self.values.shape[1]:
            raise KeyError(f"{seconds_ahead} s ahead lies outside {self.horizon_seconds} s")
        return float(self.path(quantile)[step])
