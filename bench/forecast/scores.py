"""Scores of forecast paths, per origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from bench.forecast.cases import Case
from bench.forecast.kinds import Floats

QUANTILES = (0.05, 0.5, 0.9, 0.95)
SHORT_WEIGHT = 10.0
GPUS_AT_MEAN = 10
_BLOCK = 6
_RESAMPLES = 500
# A floor, in percent, of the losses in a ratio, so that two forecasts without error are equal.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Score:
    """One forecaster at one horizon of one case: the mean over the steps, per origin.

    `pinball` is the loss of the 95 % quantile in percent of the mean load. `cost` is idle GPU-time
    and ten times the missing GPU-time in percent of an oracle's use, where GPUs are whole and ten
    serve the mean load. `covered` and `under` (load above what was provided) are percent of the
    steps.
    """

    pinball: Floats
    cost: Floats
    covered: Floats
    under: Floats


def scores(case: Case, paths: Floats) -> dict[int, Score]:
    """Return the scores by horizon in minutes."""
    capacity = case.values.mean() / GPUS_AT_MEAN
    found = {}
    for minutes, steps in case.horizons:
        actual = np.array([case.values[at : at + steps] for at in case.origins])
        low, _, _, high = (paths[:, i, :steps] for i in range(len(QUANTILES)))
        missed = actual - high
        need = np.maximum(1, np.ceil(actual / capacity))
        got = np.maximum(1, np.ceil(high / capacity))
        price = np.maximum(got - need, 0) + SHORT_WEIGHT * np.maximum(need - got, 0)
        found[minutes] = Score(
            pinball=np.maximum(0.95 * missed, -0.05 * missed).mean(axis=1)
            / (actual.mean() or 1.0)
            * 100,
            cost=price.sum(axis=1) / need.sum() * 100 * len(actual),
            covered=((actual >= low) & (actual <= high)).mean(axis=1) * 100,
            under=(actual > got * capacity).mean(axis=1) * 100,
        )
    return found


def ratio(ours: Sequence[Floats], theirs: Sequence[Floats]) -> float:
    """Return the geometric mean over cases of our mean over theirs."""
    return float(np.exp(np.mean(np.log(_ratios(ours, theirs)))))


def _ratios(ours: Sequence[Floats], theirs: Sequence[Floats]) -> Floats:
    means = np.array([[each.mean() for each in side] for side in (ours, theirs)])
    above, below = np.maximum(means, _LEAST)
    return np.asarray(above / below)


def median_to_best(ours: Sequence[Floats], others: Sequence[Sequence[Floats]]) -> float:
    """Return the median over cases of ours over the best of the others in that case."""
    return float(np.median(np.max([_ratios(ours, each) for each in others], axis=0)))


def upper_bound(
    ours: Mapping[str, Sequence[Floats]], theirs: Mapping[str, Sequence[Floats]]
) -> float:
    """Return the 97.5 % bound of `ratio` by block bootstrap over origins.

    Neighbouring origins are resampled together, and so are all horizons of a series, as their
    errors are correlated.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(_RESAMPLES):
        drawn: list[tuple[Floats, Floats]] = []
        for series, losses in ours.items():
            length = len(losses[0])
            starts = rng.integers(0, length, -(-length // _BLOCK))
            picked = np.concatenate([(start + np.arange(_BLOCK)) % length for start in starts])
            drawn += [
                (mine[picked[:length]], other[picked[:length]])
                for mine, other in zip(losses, theirs[series], strict=True)
            ]
        found.append(ratio([mine for mine, _ in drawn], [other for _, other in drawn]))
    return float(np.quantile(found, 0.975))
