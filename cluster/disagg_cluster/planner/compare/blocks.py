"""Block lengths for the bootstrap of a measure, and the correction for few blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats

LEAST_BLOCK_SECONDS = 900.0
"""Neighbouring minutes are correlated: they are resampled in blocks of at least this length."""
MOST_BLOCKS = 8
"""Longer spans have longer blocks: loads and latencies may drift as slowly as the span is long."""
RESAMPLES = 1000
# Block length in units of the correlation time (the sum of the autocorrelations).
_LONG_ENOUGH = 2.0
_MOST_CORRELATION = 0.95
_MOST_AT_A_TIME = 2_000_000
_NORMAL = 1.645
# Student's t for 95 %, by degrees of freedom from 1 on: few blocks estimate their variance poorly.
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796)

Estimate = Callable[[SpanMinutes, Floats], Floats]
"""Computes a measure of a span for each row of minute weights; NaN where it is unknown."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of minutes to resample together; `enough`: not shorter than correlation requires."""

    steps: int
    enough: bool

    @classmethod
    def of(cls, span: SpanMinutes, correlated_steps: float) -> Blocks:
        """Blocks long enough for minutes correlated over so many steps, but at least two."""
        least = max(batch_steps(span), -(-span.steps // MOST_BLOCKS))
        wanted = _LONG_ENOUGH * correlated_steps
        most = max(1, span.steps // 2)
        return cls(min(max(least, round(wanted)), most), wanted <= most)

    def few_blocks_factor(self, weights: Floats) -> float:
        """Factor that widens an interval for the number of blocks that the weighted minutes make.

        The variance of resampled blocks is (n - 1) / n of the true one, and its estimate calls for
        Student's t; as blocks overlap, with 1.5 times the degrees of freedom (Meketon and Schmeiser
        1984). Two elasticities learned from two spans (`EqualLoad`) take (n - 1) / n once more; one
        degree of freedom is wide enough without.
        """
        counted = 1 / float(np.square(weights).sum())
        blocks = max(2.0, counted / self.steps)
        if not self.enough:
            return _STUDENT[0] / _NORMAL * float(np.sqrt(blocks / (blocks - 1)))
        freedom = int(1.5 * blocks - 1)
        student = _STUDENT[min(freedom, len(_STUDENT)) - 1]
        return student / _NORMAL * blocks / (blocks - 1)


def batch_steps(span: SpanMinutes) -> int:
    """Steps of a batch: minutes closer together than this are never counted as independent."""
    return max(1, round(LEAST_BLOCK_SECONDS / span.step_seconds))


def batches_left_out(span: SpanMinutes, weights: Floats) -> Iterator[Floats]:
    """Yield weights without one batch of minutes each, `[batch, minute]`, in chunks of batches."""
    length, steps = batch_steps(span), len(weights)
    batches = -(-steps // length)
    at_a_time = max(1, _MOST_AT_A_TIME // steps)
    of_step = np.arange(steps) // length
    for first in range(0, batches, at_a_time):
        left_out = np.arange(first, min(first + at_a_time, batches))
        yield weights * (of_step != left_out[:, None])


def correlated_steps(estimate: Estimate, span: SpanMinutes, weights: Floats) -> float:
    """Correlation time of a measure in steps: (1 + r) / (1 - r) batches.

    r is the correlation of neighbouring batches in their jackknife influence on the measure,
    corrected for the bias of few batches (Kendall 1954). The formula is the sum of correlations
    that decay by the factor r from batch to batch.
    """
    length = batch_steps(span)
    of_step = np.arange(len(weights)) // length
    counts = np.bincount(of_step, weights=weights) > 0
    others = np.concatenate([estimate(span, rows) for rows in batches_left_out(span, weights)])
    known = counts & np.isfinite(others) & (others > 0)
    moved = np.zeros(len(counts))
    moved[known] = np.log(others[known])
    moved[known] -= moved[known].mean() if known.any() else 0.0
    pairs = known[1:] & known[:-1]
    spread = float(np.square(moved[known]).sum()) / max(1, int(known.sum()))
    if not pairs.any() or not spread > 0:
        return float(length)
    correlation = float((moved[1:] * moved[:-1])[pairs].mean()) / spread
    correlation += (1 + 4 * correlation) / int(known.sum())
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    return length * (1 + correlation) / (1 - correlation)


def resampled(weights: Floats, length: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield weights times draw counts, `[resample, minute]`, in chunks of resamples."""
    steps = len(weights)
    at_a_time = max(1, min(RESAMPLES, _MOST_AT_A_TIME // steps))
    for first in range(0, RESAMPLES, at_a_time):
        rows = min(at_a_time, RESAMPLES - first)
        starts = generator.integers(0, steps, (rows, -(-steps // length)))
        # Blocks wrap around at the end, so that every minute is equally likely.
        at = (starts[..., None] + np.arange(length)) % steps
        at += (np.arange(rows) * steps)[:, None, None]
        yield np.bincount(at.ravel(), minlength=rows * steps).reshape(rows, steps) * weights
