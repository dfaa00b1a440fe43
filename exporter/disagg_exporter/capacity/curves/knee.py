"""The knee of prefill: the smallest step at which tokens per second have nearly all been gained."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.model import LimitConfidence, PrefillLimit

KNEE_SHARE = 0.9
"""The part of the plateau's tokens per second that the knee has."""
ENOUGH_STEPS = 20
"""So many steps beyond the knee, and so many in all."""
ENOUGH_BELOW = 5
ENOUGH_FULL = 5
_FEW = 5
_SURE = 2.0
_WIDE = 2.0
_NEAR_TOP = 0.8
_STEADY = 0.6


def find_knee(points: Sequence[Point], gap_seconds: float = 0.0) -> PrefillLimit | None:
    """Return the knee of an engine's prefill steps; None while it cannot be told.

    The knee is where the rate (tokens of a step over its time) first reaches nine tenths of the
    best one. Tokens per second there are nine tenths of what all steps beyond it reach together:
    long contexts make every token dearer, and the prompts that come decide how long they are.

    Where rates stop to rise cannot be concluded from small steps. So a plateau counts as seen only
    when its steps differ by a factor of two, or when its largest are cut off by the engine's own
    limit on a step. And half of its steps must have six tenths of the best rate or more: what
    falls off by more is not priced by its size.

    Args:
        points: Steps by their prefill tokens, smallest first.
        gap_seconds: Host time from one step to the next, which a step costs beside its own.
    """
    known = [point for point in points if point.samples >= _FEW]
    rates = [point.size / (point.seconds + gap_seconds) for point in known]
    if not known:
        return None
    wanted = KNEE_SHARE * max(map(_surely, known, rates))
    first = next(i for i, rate in enumerate(rates) if rate >= wanted)
    beyond, below = known[first:], known[:first]
    top_size = beyond[-1].size
    full = sum(point.full for point in beyond if point.size >= _NEAR_TOP * top_size)
    if sum(point.samples for point in beyond) < ENOUGH_STEPS or (
        top_size < _WIDE * beyond[0].size and full < ENOUGH_FULL
    ):
        return None
    steps = sorted((rate, point.samples) for point, rate in zip(beyond, rates[first:], strict=True))
    if _middle(steps) < _STEADY * wanted / KNEE_SHARE:
        return None
    tokens = sum(point.samples * point.size for point in beyond)
    seconds = sum(point.samples * (point.seconds + gap_seconds) for point in beyond)
    rate = KNEE_SHARE * tokens / seconds
    if sum(point.samples for point in below) < ENOUGH_BELOW:
        return PrefillLimit(rate, LimitConfidence.ONE)
    part = (wanted - rates[first - 1]) / (rates[first] - rates[first - 1])
    knee_tokens = below[-1].size * (beyond[0].size / below[-1].size) ** part
    return PrefillLimit(rate, LimitConfidence.BOTH, knee_tokens)


def _middle(rates: Sequence[tuple[float, int]]) -> float:
    """Return the rate that half of the steps reach, of (rate, steps) in ascending order."""
    left = sum(steps for _, steps in rates) / 2
    for rate, steps in rates:
        left -= steps
        if left <= 0:
            return rate
    return rates[-1][0]


def _surely(point: Point, rate: float) -> float:
    """Return what a size's rate is at the least: of many sizes, luck alone makes one the best."""
    return rate * (1 - min(_SURE * point.scatter / math.sqrt(point.samples), 1.0))
