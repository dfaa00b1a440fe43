"""Tests whether a season reduces past errors by more than chance."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.forecast.experts import ExpertPoints, Season
from disagg_cluster.planner.forecast.past_origins import PastOrigins
from disagg_cluster.planner.history.load_series import Floats

_LEAST_STANDARD_ERRORS = 1.0
_BLOCKS_A_WEEK = 7


def season_helps(past: PastOrigins, experts: ExpertPoints, season: Season) -> bool:
    """Compare the best expert of a season with the best non-seasonal one, over past outcomes.

    At some horizon the gain must exceed its standard error over days: errors of one day are one
    observation. The stack weights experts by their errors anyway, so the test is not strict: it
    only excludes seasons that helped by chance.
    """
    past = past.since(season.period_steps)
    errors = np.moveaxis(np.abs(experts.points - past.outcomes[..., None]), -1, 1)
    means = past.mean(errors)
    seasonal = np.array([each == season.name for each in experts.seasons])
    plain = np.array([not each for each in experts.seasons])
    days = past.targets // max(
        1, season.period_steps // (_BLOCKS_A_WEEK if season.name == "week" else 1)
    )
    return any(
        _standard_errors(
            errors[i, _best(means[i], plain)] - errors[i, _best(means[i], seasonal)],
            past.sample_weights[i],
            days[i],
        )
        > _LEAST_STANDARD_ERRORS
        for i in range(len(past.horizons))
    )


def _best(means: Floats, among: np.typing.NDArray[np.bool_]) -> int:
    return int(np.argmin(np.where(among, means, np.inf)))


def _standard_errors(
    gains: Floats, sample_weights: Floats, blocks: np.typing.NDArray[np.int64]
) -> float:
    """Mean gain over blocks, divided by its standard error."""
    sums = np.bincount(blocks, weights=gains * sample_weights)
    weights = np.bincount(blocks, weights=sample_weights)
    means = sums[weights > 0] / weights[weights > 0]
    if len(means) < 2:
        return 0.0
    error = means.std(ddof=1) / np.sqrt(len(means))
    return float(means.mean() / max(error, np.finfo(float).tiny))
