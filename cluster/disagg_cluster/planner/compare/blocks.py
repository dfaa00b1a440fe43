"""In blocks of how many minutes a measure of a span is drawn again, and how little they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.load_series import Floats

LEAST_BLOCK_SECONDS = 900.0
"""Minutes beside each other are alike: they are drawn again in blocks of so long at least."""
MOST_BLOCKS = 8
"""A longer span has longer blocks: loads and latencies may wander as slowly as it is long."""
RESAMPLES = 1000
# Blocks are as long as so many times what is alike lasts (the sum of the autocorrelations).
_LONG_ENOUGH = 2.0
_MOST_ALIKE = 0.95
_MOST_AT_A_TIME = 2_000_000
_NORMAL = 1.645
# Student's t for 95 %, by degrees of freedom from 1 on: few blocks know little of how they vary.
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796)

Estimate = Callable[[SpanMinutes, Floats], Floats]
"""A measure of a span for each row of weights of its minutes; NaN where it is not known."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of minutes that are drawn together; not `enough` are too short for what is alike."""

    steps: int
    enough: bool

    @classmethod
    def of(cls, span: SpanMinutes, alike_steps: float) -> Blocks:
        """Long enough, and two at least, for minutes that stay alike for so many."""
        least = max(_batch_steps(span), -(-span.steps // MOST_BLOCKS))
        wanted = _LONG_ENOUGH * alike_steps
        most = max(1, span.steps // 2)
        return cls(min(max(least, round(wanted)), most), wanted <= most)

    def for_few(self, weights: Floats) -> float:
        """How much wider an interval is of as few blocks as the minutes that count make.

        Blocks drawn again vary by (n - 1) / n of what they should, and by Student's t at that; as
        they overlap, with half again as many degrees of freedom (Meketon and Schmeiser 1984).
        """
        counted = 1 / float(np.square(weights).sum())
        blocks = max(2.0, counted / self.steps)
        freedom = int(1.5 * blocks - 1) if self.enough else 1
        student = _STUDENT[min(freedom, len(_STUDENT)) - 1]
        return student / _NORMAL * float(np.sqrt(blocks / (blocks - 1)))


def _batch_steps(span: SpanMinutes) -> int:
    return max(1, round(LEAST_BLOCK_SECONDS / span.step_seconds))


def alike_steps(estimate: Estimate, span: SpanMinutes, weights: Floats) -> float:
    """For how many steps a measure stays alike: (1 + r) / (1 - r) batches.

    r is the correlation of neighbouring batches in how far each moves the measure (jackknife),
    less the bias of few (Kendall 1954); what falls by r from batch to batch sums up to that.
    """
    length, steps = _batch_steps(span), len(weights)
    batches = -(-steps // length)
    at_a_time = max(1, _MOST_AT_A_TIME // steps)
    of_step = np.arange(steps) // length
    without = []
    for first in range(0, batches, at_a_time):
        left_out = np.arange(first, min(first + at_a_time, batches))
        without.append(estimate(span, weights * (of_step != left_out[:, None])))
    counts = np.bincount(of_step, weights=weights, minlength=batches) > 0
    others = np.concatenate(without)
    known = counts & np.isfinite(others) & (others > 0)
    moved = np.zeros(batches)
    moved[known] = np.log(others[known])
    moved[known] -= moved[known].mean() if known.any() else 0.0
    pairs = known[1:] & known[:-1]
    spread = float(np.square(moved[known]).sum()) / max(1, int(known.sum()))
    if not pairs.any() or not spread > 0:
        return float(length)
    alike = float((moved[1:] * moved[:-1])[pairs].mean()) / spread
    alike = min(max(alike + (1 + 4 * alike) / int(known.sum()), 0.0), _MOST_ALIKE)
    return length * (1 + alike) / (1 - alike)


def resampled(weights: Floats, length: int, generator: np.random.Generator) -> Iterator[Floats]:
    """`[resample, minute]`, some at a time: weights times how often a minute was drawn."""
    steps = len(weights)
    at_a_time = max(1, min(RESAMPLES, _MOST_AT_A_TIME // steps))
    for first in range(0, RESAMPLES, at_a_time):
        rows = min(at_a_time, RESAMPLES - first)
        starts = generator.integers(0, steps, (rows, -(-steps // length)))
        # Blocks go on from the end at the beginning, so that every minute is drawn as often.
        at = (starts[..., None] + np.arange(length)) % steps
        at += (np.arange(rows) * steps)[:, None, None]
        yield np.bincount(at.ravel(), minlength=rows * steps).reshape(rows, steps) * weights
