"""Past origins and horizons at which forecasts are repeated to learn from their errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.forecast.running_means import Indices
from disagg_cluster.planner.history.load_series import Floats

_MOST_ORIGINS = 700
_HORIZONS = 10
_FOLDS = 4
# In lengths of the history: its oldest errors count half as much as the latest.
_HALF_LIFE = 1.0


@dataclass(frozen=True, slots=True)
class PastOrigins:
    """Origins (last known steps), horizons in steps, and outcomes.

    `outcomes[horizon, origin]` is 0 where `sample_weights` is: the outcome is not known yet, or a
    gap. `independent[horizon]` is the number of non-overlapping outcomes.
    """

    origins: Indices
    horizons: Indices
    outcomes: Floats
    sample_weights: Floats
    independent: Floats

    @classmethod
    def of(cls, values: Floats, horizon_steps: int) -> PastOrigins:
        """Origins spread over the history; horizons spaced geometrically up to `horizon_steps`."""
        length = len(values)
        horizons = np.unique(np.round(np.geomspace(1, horizon_steps, _HORIZONS)).astype(np.int64))
        earliest = max(0, min(max(3, length // 10), length - horizon_steps - 4))
        spread = np.linspace(earliest, length - 2, _MOST_ORIGINS)
        origins = np.unique(np.round(spread).astype(np.int64))
        targets = origins + horizons[:, None]
        outcomes = values[np.minimum(targets, length - 1)]
        known = (targets < length) & np.isfinite(outcomes)
        age = (length - 1 - origins) / length
        shares = known.mean(axis=1)
        return cls(
            origins,
            horizons,
            np.where(known, outcomes, 0.0),
            known * 0.5 ** (age / _HALF_LIFE),
            shares * (length - earliest) / horizons,
        )

    def since(self, step: int) -> PastOrigins:
        """The same with forecasts from origins before `step` left out."""
        later = self.sample_weights * (self.origins >= step)
        left = (later > 0).sum(axis=1) / np.maximum(1, (self.sample_weights > 0).sum(axis=1))
        return replace(self, sample_weights=later, independent=self.independent * left)

    def balanced(self, launch: int) -> PastOrigins:
        """The same with outcomes before the step `launch` weighing no more than those since."""
        old = self.targets < launch
        before = (self.sample_weights * old).sum(axis=1)
        since = self.sample_weights.sum(axis=1) - before
        less = np.divide(
            since, before, out=np.ones_like(before), where=(since > 0) & (before > since)
        )
        return replace(self, sample_weights=self.sample_weights * np.where(old, less[:, None], 1.0))

    @property
    def targets(self) -> Indices:
        """Step of each outcome."""
        targets: Indices = self.origins + self.horizons[:, None]
        return targets

    def mean(self, errors: Floats) -> Floats:
        """Weighted mean over the origins, the last axis."""
        totals = np.maximum(self.sample_weights.sum(axis=1), np.finfo(float).tiny)
        weights = self.sample_weights.reshape(
            len(self.horizons), *[1] * (errors.ndim - 2), len(self.origins)
        )
        means: Floats = (errors * weights).sum(axis=-1) / totals.reshape(
            -1, *[1] * (errors.ndim - 2)
        )
        return means

    def folds(self) -> list[tuple[NDArray[np.int64], Floats]]:
        """Runs of origins, each with sample weights that are 0 for outcomes overlapping the run."""
        found = []
        ahead = self.horizons[:, None]
        for fold in np.array_split(np.arange(len(self.origins)), _FOLDS):
            first, last = self.origins[fold[0]], self.origins[fold[-1]]
            clear = (self.targets < first) | (self.origins > last + ahead)
            found.append((fold, self.sample_weights * clear))
        return found
