"""Selects the next step to time in the search for the prefill knee, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from disagg_cluster.tune.probed import GRID_STEP, TimedSteps, spread_over
from disagg_exporter.capacity.curves.curve import Point
from disagg_exporter.capacity.curves.limits import ENOUGH_STEPS, KNEE_SHARE, enough, find_knee
from disagg_exporter.capacity.curves.rates import RateCurve, rate_curve
from disagg_exporter.model import PrefillLimit

_OPENING_RATIO = 4.0
_SURE = 2.0
_BRACKET_STEPS = 2.0
_BESIDE_STEPS = 3.01
_TIGHT = 0.6
# A slope of rate over size below this counts as flat: the knee may lie anywhere.
_LEAST_SLOPE = 0.02
_SLOPE_REACH = GRID_STEP
# Steps further from the knee and from the best rate than this add little information.
_NEAR = math.log(2)


@dataclass(frozen=True, slots=True)
class KneeEstimate:
    """Where the rate first reaches nine tenths of the best, as `find_knee` computes it.

    `low_tokens` and `high_tokens` are its 95 % interval. `limit` is what the exporter would
    conclude; None if these steps allow no conclusion.
    """

    knee_tokens: float
    low_tokens: float
    high_tokens: float
    knee_tokens_per_second: float
    best_tokens_per_second: float
    limit: PrefillLimit | None

    @property
    def half_width(self) -> float:
        """Half the width of the knee's interval, as a logarithm."""
        return math.log(self.high_tokens / self.low_tokens) / 2


def knee_estimate(points: Sequence[Point]) -> KneeEstimate | None:
    """Return the estimate of the knee; None with fewer than three sizes.

    The error of the knee is the combined error of the rate there and of the best rate, divided by
    the slope of the rate there.
    """
    known = enough(points)
    if len(known) < 3:
        return None
    curve = rate_curve(known)
    limit = find_knee(known, curve=curve)
    knee = curve.first_size(KNEE_SHARE * curve.best)
    deviation = _knee_deviation(curve, knee)
    wide = math.exp(_SURE * deviation)
    sizes = [float(point.size) for point in known]
    return KneeEstimate(
        knee_tokens=knee,
        low_tokens=max(knee / wide, sizes[0]),
        high_tokens=min(knee * wide, sizes[-1]),
        knee_tokens_per_second=curve.at(knee),
        best_tokens_per_second=curve.best,
        limit=limit,
    )


def _knee_deviation(curve: RateCurve, knee: float) -> float:
    """Return the standard deviation of the knee's logarithm."""
    best = int((curve.rates * (1 - _SURE * curve.errors)).argmax())
    error = math.hypot(_error_at(curve, knee), float(curve.errors[best]))
    low, high = max(knee / _SLOPE_REACH, curve.sizes[0]), min(knee * _SLOPE_REACH, curve.sizes[-1])
    slope = math.log(curve.at(high) / curve.at(low)) / math.log(high / low)
    return error / max(slope, _LEAST_SLOPE)


def _error_at(curve: RateCurve, size: float) -> float:
    return float(np.interp(math.log(size), np.log(curve.sizes), curve.errors))


@dataclass(frozen=True, slots=True)
class KneeSearch:
    """Selects sizes of steps to time, one at a time.

    First some far apart; then, while the sizes around the knee are more than two grid steps apart,
    the one between them; then the one expected to reduce the error of the knee most. It ends when
    the knee is known to one grid step, or nothing would help.

    Attributes:
        grid: Sizes that can be timed, ascending.
        most_probes: Maximum number of probes.
    """

    grid: tuple[int, ...]
    most_probes: int

    def next_size(self, probed: TimedSteps) -> int | None:
        """Return the next size to time; None when the search has ended."""
        if len(probed.probes) >= self.most_probes:
            return None
        for size in spread_over(self.grid, _OPENING_RATIO):
            if size not in probed.sizes:
                return size
        found = knee_estimate(probed.points)
        if found is None:
            return self._middle_of_widest(probed)
        if found.limit is None or found.limit.knee_tokens is None:
            if not self._can_be_seen(probed, found):
                return None
            if self._steps_beyond(probed, found.knee_tokens) < ENOUGH_STEPS:
                return self._beyond(probed, found.knee_tokens)
        between = self._between(probed, found.knee_tokens)
        if between is not None:
            return between
        beside = self._beside(probed, found.knee_tokens)
        if beside is not None:
            return beside
        if found.half_width <= math.log(GRID_STEP) * _TIGHT:
            return None
        return self._narrowing(probed, found)

    def _can_be_seen(self, probed: TimedSteps, found: KneeEstimate) -> bool:
        """Whether a knee may still be concluded: some steps are smaller, some twice as large."""
        return (
            found.knee_tokens > probed.sizes[0] * 1.001 and 2 * found.low_tokens <= probed.sizes[-1]
        )

    @staticmethod
    def _steps_beyond(probed: TimedSteps, knee: float) -> int:
        return sum(point.samples for point in probed.points if point.size >= knee)

    def _beside(self, probed: TimedSteps, knee: float) -> int | None:
        """The nearest untimed grid size to the knee."""
        reach = GRID_STEP**_BESIDE_STEPS
        return probed.untimed_between(self.grid, knee / reach, knee * reach)

    def _between(self, probed: TimedSteps, knee: float) -> int | None:
        """The middle of the timed sizes around the knee, if they are far apart."""
        sizes = probed.sizes
        low = max((size for size in sizes if size <= knee), default=sizes[0])
        high = min((size for size in sizes if size > knee), default=sizes[-1])
        if high < low * GRID_STEP**_BRACKET_STEPS * 1.01:
            return None
        return probed.untimed_between(self.grid, low, high)

    def _middle_of_widest(self, probed: TimedSteps) -> int | None:
        gaps = sorted(pairwise(probed.sizes), key=lambda gap: gap[0] / gap[1])
        for low, high in gaps:
            free = [size for size in self.grid if low < size < high]
            if free:
                return free[len(free) // 2]
        return None

    def _beyond(self, probed: TimedSteps, knee: float) -> int:
        sizes = [size for size in probed.sizes if size >= knee]
        edges = [knee, *sizes]
        low, high = max(pairwise(edges), key=lambda gap: gap[1] / gap[0])
        return probed.untimed_between(self.grid, low, high) or max(self.grid)

    def _narrowing(self, probed: TimedSteps, found: KneeEstimate) -> int | None:
        """The size that would reduce the knee's error most if its step time matched the curve."""
        known = enough(probed.points)
        curve = rate_curve(known)
        usual = float(np.median([point.scatter for point in known]))
        best, least = None, math.inf
        top = float(curve.sizes[curve.rates.argmax()])
        for size in self.grid:
            near = any(abs(math.log(size / each)) < _NEAR for each in (found.knee_tokens, top))
            if not near or not known[0].size <= size <= known[-1].size:
                continue
            with_it = _with(known, size, size / curve.at(size), usual)
            error = _knee_deviation(rate_curve(with_it), found.knee_tokens)
            if error < least * (1 - 1e-9):
                best, least = size, error
        return best


def _with(points: Sequence[Point], size: int, seconds: float, scatter: float) -> list[Point]:
    same = next((n for n, point in enumerate(points) if point.size == size), None)
    if same is not None:
        more = points[same]._replace(samples=points[same].samples + 5)
        return [*points[:same], more, *points[same + 1 :]]
    return sorted([*points, Point(float(size), seconds, 5, scatter)])
