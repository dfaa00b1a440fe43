"""The batch at which a decode step lasts exactly as long as the inter-token target allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.model import DecodeLimit, LimitConfidence

ENOUGH_SAMPLES = 10
ENOUGH_EACH_SIDE = 5
FARTHEST = 16.0
"""A batch of more than so many times the largest one seen is never concluded."""
_NEAR = 4.0
_LEAST_SCATTER = 0.02
_SURE = 2.0
_FLAT = 1e-12


def find_batch(points: Sequence[Point], target_seconds: float) -> DecodeLimit | None:
    """Return the batch that just meets the target; None while too few steps were seen.

    Step times are made to grow with the batch first. Where they cross the target, the batch is
    read off. Where even the largest batch seen is quicker, a line goes on from there, its slope
    that of the larger batches plus twice its error; steeper than from zero is no slope of a step,
    which has a share that does not depend on the batch. So ignorance makes the batch too small,
    and the engine look too full, never the other way. Where even the smallest is slower, a line
    leads back from it.

    Args:
        points: Steps that only write, by their batch, smallest first; from step to step.
        target_seconds: What users may wait from one token to the next.
    """
    if sum(point.samples for point in points) < ENOUGH_SAMPLES:
        return None
    curve = growing(points)
    quick = [point for point in curve if point.seconds <= target_seconds]
    slow = [point for point in curve if point.seconds > target_seconds]
    if not slow:
        last = quick[-1]
        slope, error = _line([point for point in points if point.size * _NEAR >= last.size])
        slope = min(slope + _SURE * error, last.seconds / last.size)
        more = (target_seconds - last.seconds) / max(slope, _FLAT)
        return DecodeLimit(min(last.size + more, FARTHEST * last.size), LimitConfidence.ONE)
    if not quick:
        first = slow[0]
        slope, _ = _line([point for point in points if point.size <= first.size * _NEAR])
        slope = min(max(slope, _FLAT), first.seconds / first.size)
        batch = first.size - (first.seconds - target_seconds) / slope
        return (
            DecodeLimit(batch, LimitConfidence.ONE)
            if batch >= 1
            else DecodeLimit(None, LimitConfidence.UNREACHABLE)
        )
    low, high = quick[-1], slow[0]
    part = (target_seconds - low.seconds) / (high.seconds - low.seconds)
    samples = min(sum(point.samples for point in side) for side in (quick, slow))
    batch = low.size + part * (high.size - low.size)
    return DecodeLimit(
        batch, LimitConfidence.BOTH if samples >= ENOUGH_EACH_SIDE else LimitConfidence.ONE
    )


def growing(points: Sequence[Point]) -> list[Point]:
    """Return the points with seconds that never fall: the closest such ones.

    Isotonic regression by pooling neighbours that are out of order (Ayer et al., 1955), weighted
    by samples.
    """
    pools: list[tuple[float, int, list[Point]]] = []
    for point in points:
        seconds, samples, pooled = point.seconds, point.samples, [point]
        while pools and pools[-1][0] >= seconds:
            before, weight, earlier = pools.pop()
            seconds = (before * weight + seconds * samples) / (weight + samples)
            samples += weight
            pooled = earlier + pooled
        pools.append((seconds, samples, pooled))
    return [point._replace(seconds=seconds) for seconds, _, pool in pools for point in pool]


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Return slope and error of the weighted least-squares line; both endless for a single size.

    Where points stray more than their scatter explains, the error grows by as much.
    """
    weights = [
        point.samples / (max(point.scatter, _LEAST_SCATTER) * point.seconds) ** 2
        for point in points
    ]
    weighted = tuple(zip(weights, points, strict=True))
    total = sum(weights)
    middle = sum(w * p.size for w, p in weighted) / total
    level = sum(w * p.seconds for w, p in weighted) / total
    spread = sum(w * (p.size - middle) ** 2 for w, p in weighted)
    if spread <= 0:
        return math.inf, math.inf
    slope = sum(w * (p.size - middle) * (p.seconds - level) for w, p in weighted) / spread
    slope = max(slope, 0.0)
    misfit = sum(w * (p.seconds - level - slope * (p.size - middle)) ** 2 for w, p in weighted)
    return slope, math.sqrt(max(misfit / max(len(points) - 2, 1), 1.0) / spread)
