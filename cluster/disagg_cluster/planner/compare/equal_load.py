"""Removes from a measure what is due to the difference of load left within the strata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.compare.blocks import Estimate, batches_left_out
from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats

_NORMAL = 1.645
# Prior deviation of an elasticity: where load hardly varies, a measure may still follow it.
_PRIOR = 1.0
_LEAST_VARIANCE = 1e-18
# Batches beyond what the regression takes; with fewer it would explain all drift by the load.
_LEAST_FREEDOM = 4


@dataclass(frozen=True, slots=True, eq=False)
class EqualLoad:
    """A measure at the load and prompt length midway between two spans.

    Minutes of a stratum differ by up to a fifth in load, and a measure like tokens per GPU may
    differ by as much. Its elasticities to load and prompt length are learned within both spans, by
    regression over batches of minutes, so that neither a difference of load between spans nor the
    load's own course within them counts as a change or as noise.

    Attributes:
        measured: The measure as it was.
        elasticities: To requests per second and to prompt tokens per request.
        covariance: Of the elasticities, if batches are independent.
        middle: Logarithms of the load at which both spans are compared.
        difference: Logarithms of the load after over that before.
    """

    measured: Estimate
    elasticities: Floats
    covariance: Floats
    middle: Floats
    difference: Floats

    @classmethod
    def between(
        cls,
        measured: Estimate,
        spans: tuple[SpanMinutes, SpanMinutes],
        weights: tuple[Floats, Floats],
    ) -> EqualLoad:
        """Learn the elasticities from both spans, and where they lie apart."""
        pairs = [
            _deviations(measured, span, weight) for span, weight in zip(spans, weights, strict=True)
        ]
        loads = np.concatenate([each[0] for each in pairs])
        values = np.concatenate([each[1] for each in pairs])
        before, after = (
            _loads(span, weight[None, :])[0] for span, weight in zip(spans, weights, strict=True)
        )
        middle, difference = (before + after) / 2, after - before
        freedom = len(values) - len(pairs) - loads.shape[1]
        if freedom < _LEAST_FREEDOM:
            none = np.zeros(loads.shape[1])
            return cls(measured, none, _PRIOR**2 * np.eye(len(none)), middle, difference)
        slopes = np.linalg.lstsq(loads, values, rcond=1e-9)[0]
        variance = float(np.square(values - loads @ slopes).sum()) / freedom
        variance = max(variance, _LEAST_VARIANCE)
        inverse = np.linalg.inv(loads.T @ loads + variance / _PRIOR**2 * np.eye(loads.shape[1]))
        elasticities = inverse @ loads.T @ values
        return cls(measured, elasticities, variance * inverse, middle, difference)

    def estimate(self, span: SpanMinutes, weights: Floats) -> Floats:
        """Compute the measure at the common load for each row of minute weights."""
        apart = _loads(span, weights) - self.middle
        found: Floats = self.measured(span, weights) * np.exp(-apart @ self.elasticities)
        return found

    def wider(self, ends: Floats, batches_alike: float) -> Floats:
        """Add the error of the elasticities to the ends of an interval of the log change.

        Args:
            ends: Its low and high end, relative to the estimate.
            batches_alike: Correlation time of the batches: so many count as one.
        """
        apart = self.difference
        variance = float(apart @ self.covariance @ apart) * batches_alike
        variance = min(variance, _PRIOR**2 * float(apart @ apart))
        found: Floats = np.array([-1.0, 1.0]) * np.hypot(ends, _NORMAL * np.sqrt(variance))
        return found


def _loads(span: SpanMinutes, weights: Floats) -> Floats:
    """Logarithms of requests per second and prompt tokens per request, by row of weights."""
    requests = weights @ np.where(weights.any(axis=0), span.requests, 0.0)
    tokens = weights @ np.where(weights.any(axis=0), span.prompt_tokens, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        loads = np.stack([requests / weights.sum(axis=1), tokens / requests], axis=1)
        found: Floats = np.log(loads)
    return found


def _deviations(measured: Estimate, span: SpanMinutes, weights: Floats) -> tuple[Floats, Floats]:
    """Deviations of loads and of the measure's logarithm, each with a batch of minutes left out."""
    found = list(_left_out(measured, span, weights))
    loads = np.concatenate([each[0] for each in found])
    values = np.concatenate([each[1] for each in found])
    known = np.isfinite(loads).all(axis=1) & np.isfinite(values)
    loads, values = loads[known], values[known]
    return loads - loads.mean(axis=0), values - values.mean()


def _left_out(
    measured: Estimate, span: SpanMinutes, weights: Floats
) -> Iterator[tuple[Floats, Floats]]:
    for rows in batches_left_out(span, weights):
        with np.errstate(divide="ignore", invalid="ignore"):
            yield _loads(span, rows), np.log(measured(span, rows))
