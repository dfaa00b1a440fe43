"""The batch at which a decode step lasts exactly as long as the inter-token target allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disagg_exporter.fullness.curve import Point
from disagg_exporter.model import DecodeLimit, Sides

ENOUGH_SAMPLES = 10
ENOUGH_EACH_SIDE = 5
FARTHEST = 16.0
"""A batch of more than so many times the largest one seen is never concluded."""
_NEAR = 4.0
_LEAST_SCATTER = 0.02
_SURE = 2.0
_NO_ERROR_AT_ALL = 1e-12


def find_batch(points: Sequence[Point], target_seconds: float) -> DecodeLimit | None:
    """Return the batch that just meets the target; None while too few steps were seen.

    Step times are made to grow with the batch first. Where they cross the target, the batch is
    read off. Where even the largest batch seen is quicker, a line goes on from there, its slope
    that of the larger batches plus twice its error; steeper than from zero is no slope of a step,
    which has a share that does not depend on the batch. So ignorance makes the batch too small,
    and the engine look too full, never the other way.

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
        more = (target_seconds - last.seconds) / _slope(points, last)
        return DecodeLimit(min(last.size + more, FARTHEST * last.size), Sides.ONE)
    if not quick:
        # Fewer requests than were ever seen; one at least, or nothing would meet the target.
        return DecodeLimit(max(1.0, slow[0].size * target_seconds / slow[0].seconds), Sides.ONE)
    low, high = quick[-1], slow[0]
    part = (target_seconds - low.seconds) / (high.seconds - low.seconds)
    sure = all(sum(point.samples for point in side) >= ENOUGH_EACH_SIDE for side in (quick, slow))
    batch = low.size + part * (high.size - low.size)
    return DecodeLimit(batch, Sides.BOTH if sure else Sides.ONE)


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


def _slope(points: Sequence[Point], last: Point) -> float:
    """Return the most that a further request may cost, by what the larger batches say.

    A weighted least-squares line; where its points stray more than their scatter explains, its
    error grows by as much.
    """
    steepest = last.seconds / last.size
    near = [point for point in points if point.size * _NEAR >= last.size]
    weights = [
        point.samples / (max(point.scatter, _LEAST_SCATTER) * point.seconds) ** 2 for point in near
    ]
    total = sum(weights)
    middle = sum(w * p.size for w, p in zip(weights, near, strict=True)) / total
    level = sum(w * p.seconds for w, p in zip(weights, near, strict=True)) / total
    spread = sum(w * (p.size - middle) ** 2 for w, p in zip(weights, near, strict=True))
    if spread <= 0:
        return steepest
    slope = (
        sum(w * (p.size - middle) * (p.seconds - level) for w, p in zip(weights, near, strict=True))
        / spread
    )
    misfit = sum(
        w * (p.seconds - level - slope * (p.size - middle)) ** 2
        for w, p in zip(weights, near, strict=True)
    )
    error = math.sqrt(max(misfit / max(len(near) - 2, 1), 1.0) / spread)
    return min(max(slope, 0.0) + _SURE * max(error, _NO_ERROR_AT_ALL), steepest)
