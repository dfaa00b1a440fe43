"""Limits read off the curves: the knee of prefill, and the largest batch within a latency."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.capacity.curves.rates import RateCurve, rate_curve, relative_variances
from disagg_exporter.model import CurveSample, DecodeLimit, LimitConfidence, PrefillLimit

KNEE_SHARE = 0.9
"""The knee's share of the plateau's tokens per second."""
ENOUGH_STEPS = 20
"""Steps needed beyond the knee, and in total."""
ENOUGH_BELOW = 5
ENOUGH_FULL = 5
_FEW = 5
_SURE = 2.0
_WIDE = 2.0
_NEAR_TOP = 0.8
_STEADY = 0.6


def enough(points: Sequence[Point]) -> list[Point]:
    """Return the sizes with enough observed steps to be usable."""
    return [point for point in points if point.samples >= _FEW]


def find_knee(
    points: Sequence[Point], gap_seconds: float = 0.0, curve: RateCurve | None = None
) -> PrefillLimit | None:
    """Return the knee of an engine's prefill steps; None while it is not known.

    The knee is where the rate (tokens of a step over its time) first reaches nine tenths of the
    best one observed, on a curve through all sizes. Tokens per second there are nine tenths of what
    all steps beyond it reach together: long contexts make every token more expensive, and the
    arriving prompts decide how long they are.

    Small steps do not show where rates stop rising. So a plateau counts as observed only when its
    steps differ by a factor of two, or when its largest are cut off by the engine's own limit on a
    step. And half of its steps must have six tenths of the best rate or more: if rates fall off by
    more, size is not what determines them.

    Args:
        points: Steps by their prefill tokens, smallest first.
        gap_seconds: Host time from one step to the next, which a step costs beside its own.
        curve: Their `rate_curve`, if already computed.
    """
    known = enough(points)
    if not known:
        return None
    curve = curve or rate_curve(known, gap_seconds)
    best_rate = curve.best
    knee_tokens = curve.first_size(KNEE_SHARE * best_rate)
    beyond = [point for point in known if point.size >= knee_tokens]
    below = known[: len(known) - len(beyond)]
    top_size = beyond[-1].size
    full = sum(point.full for point in beyond if point.size >= _NEAR_TOP * top_size)
    if sum(point.samples for point in beyond) < ENOUGH_STEPS or (
        top_size < _WIDE * beyond[0].size and full < ENOUGH_FULL
    ):
        return None
    rates = [(point.size / (point.seconds + gap_seconds), point.samples) for point in beyond]
    if _middle(sorted(rates)) < _STEADY * best_rate:
        return None
    tokens = sum(point.samples * point.size for point in beyond)
    seconds = sum(point.samples * (point.seconds + gap_seconds) for point in beyond)
    rate = KNEE_SHARE * tokens / seconds
    if sum(point.samples for point in below) < ENOUGH_BELOW:
        return PrefillLimit(rate, LimitConfidence.ONE)
    return PrefillLimit(rate, LimitConfidence.BOTH, knee_tokens)


def _middle(rates: Sequence[tuple[float, int]]) -> float:
    """Return the rate that half of the steps reach, of (rate, steps) in ascending order."""
    left = sum(steps for _, steps in rates) / 2
    for rate, steps in rates:
        left -= steps
        if left <= 0:
            return rate
    return rates[-1][0]


ENOUGH_SAMPLES = 10
ENOUGH_EACH_SIDE = 5
_SAMPLE_BATCHES = (1, 4, 16, 32, 64, 128, 256, 512)
FARTHEST = 16.0
"""A batch of more than this many times the largest one observed is never inferred."""
_NEAR = 4.0
_FLAT = 1e-12


def find_batch(points: Sequence[Point], target_seconds: float) -> DecodeLimit | None:
    """Return the batch that just meets the target; None while too few steps were observed.

    Step times are first made to grow with the batch. Where they cross the target, the batch is read
    off. Where even the largest observed batch is faster, a line extrapolates from there: its slope
    is that of the batches within a factor of four plus twice its error, or that of the last factor
    of two plus its error, whichever is steeper; these errors allow for sizes that are off any line,
    however often they were observed. The slope is never steeper than a line from zero, since part
    of a step's time does not depend on the batch. So ignorance makes the batch too small, and the
    engine look too full, and hardly ever the reverse. Where even the smallest batch is slower, a
    line leads back from it, as flat as is plausible; where that is too flat to say whether any
    batch meets the target, as with a single size, only an upper bound on the batch is returned.

    Args:
        points: Steps that only decode, by their batch, smallest first; from step to step.
        target_seconds: The longest time that users may wait between tokens.
    """
    if sum(point.samples for point in points) < ENOUGH_SAMPLES:
        return None
    curve = growing(points)
    quick = [point for point in curve if point.seconds <= target_seconds]
    slow = [point for point in curve if point.seconds > target_seconds]
    if not slow:
        last = quick[-1]
        slope = min(_steepest(points, last.size), last.seconds / last.size)
        more = (target_seconds - last.seconds) / max(slope, _FLAT)
        return DecodeLimit(min(last.size + more, FARTHEST * last.size), LimitConfidence.ONE)
    if not quick:
        return _extrapolate_down(points, slow[0], target_seconds)
    low, high = quick[-1], slow[0]
    part = (target_seconds - low.seconds) / (high.seconds - low.seconds)
    samples = min(sum(point.samples for point in side) for side in (quick, slow))
    batch = low.size + part * (high.size - low.size)
    both = samples >= ENOUGH_EACH_SIDE
    return DecodeLimit(batch, LimitConfidence.BOTH if both else LimitConfidence.ONE)


def _extrapolate_down(points: Sequence[Point], first: Point, target_seconds: float) -> DecodeLimit:
    """Return the batch below all observed ones, of which `first` is the smallest."""
    slope, error = _line([point for point in points if point.size <= first.size * _NEAR])
    steepest = first.seconds / first.size
    if not math.isfinite(error):
        slope, error = 0.0, steepest
    flat, steep = (
        first.size - (first.seconds - target_seconds) / min(max(each, _FLAT), steepest)
        for each in (slope - error, slope + _SURE * error)
    )
    if flat >= 1:
        return DecodeLimit(flat, LimitConfidence.ONE)
    if steep < 1:
        return DecodeLimit(None, LimitConfidence.UNREACHABLE)
    return DecodeLimit(None, LimitConfidence.ONE, below=target_seconds / steepest)


def _steepest(points: Sequence[Point], size: float) -> float:
    """Return the steepest plausible growth of step time with the batch, at the largest observed.

    Measured curves bend upwards: the last batches say more than those before them.
    """
    wide, error = _line([point for point in points if point.size * _NEAR >= size])
    last, error_last = _line([point for point in points if point.size * _WIDE >= size])
    steepest = wide + _SURE * error
    return max(steepest, last + error_last) if math.isfinite(error_last) else steepest


def growing(points: Sequence[Point]) -> list[Point]:
    """Return the closest points whose seconds never decrease.

    Points are weighted by their samples.
    """
    seconds = isotonic([(point.seconds, point.samples) for point in points])
    return [point._replace(seconds=each) for point, each in zip(points, seconds, strict=True)]


def isotonic(weighted: Iterable[tuple[float, int]]) -> list[float]:
    """Return the nearest values that never fall, by the values and their weights.

    Isotonic regression by pooling neighbours that are out of order (Ayer et al., 1955).
    """
    pools: list[tuple[float, int, int]] = []
    for value, weight in weighted:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, heavier, several = pools.pop()
            mean = (before * heavier + mean * weight) / (heavier + weight)
            weight, count = weight + heavier, count + several
        pools.append((mean, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def batch_curve(points: Sequence[Point], gap_seconds: float = 0.0) -> tuple[CurveSample, ...]:
    """Return the time from token to token at batches that are the same for every engine."""
    curve = growing(enough(points))
    if not curve:
        return ()
    sizes = [point.size for point in curve]
    seconds = [point.seconds + gap_seconds for point in curve]
    within = [batch for batch in _SAMPLE_BATCHES if sizes[0] <= batch <= sizes[-1]]
    return tuple(CurveSample(n, float(np.interp(n, sizes, seconds))) for n in within)


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Return slope and error of the weighted least-squares line; both infinite for a single size.

    Where points deviate more than their known scatter, the error grows by as much.
    """
    if points[0].size == points[-1].size:
        return math.inf, math.inf
    sizes = np.array([point.size for point in points])
    seconds = np.array([point.seconds for point in points])
    weights = 1 / (relative_variances(points) * seconds**2)
    whole = weights.sum()
    away = sizes - (sizes * weights).sum() / whole
    spread = float(weights @ away**2)
    level = (seconds * weights).sum() / whole
    slope = max(float(weights @ (away * (seconds - level))) / spread, 0.0)
    misfit = float(weights @ (seconds - level - slope * away) ** 2)
    return slope, math.sqrt(max(misfit / max(len(points) - 2, 1), 1.0) / spread)
