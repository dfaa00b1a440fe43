"""What steps of some size take, as several engines have shown it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.engine_costs import UnseenStepError

Points = Mapping[float, float]
"""Seconds of a step by its size, above 0 both."""

REACH = 2.0
"""Beyond the largest size that was seen nothing is said from this many times it on."""
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class LearnedCurve:
    """Seconds by size, never falling.

    Between points it is linear, below the first as there. Beyond the last it goes on along the
    line from half of the last size, or from nothing, whichever is steeper: what was not seen is
    taken to be dearer, not cheaper. `spread` is the standard deviation of engines from each other,
    over their median; None of a single one.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    spread: float | None
    engines: int

    @property
    def largest(self) -> float:
        """The largest size that was seen."""
        return self.sizes[-1]

    def at(self, size: float) -> float:
        """What a step of this size takes.

        Raises:
            UnseenStepError: It is beyond reach.
        """
        last, last_seconds = self.sizes[-1], self.seconds[-1]
        if size <= last:
            return float(np.interp(size, self.sizes, self.seconds))
        if size > REACH * last:
            raise UnseenStepError(
                f"no step larger than {last:.0f} was seen, and one of {size:.0f} is asked for"
            )
        half_seconds = float(np.interp(last / 2, self.sizes, self.seconds))
        slope = max((last_seconds - half_seconds) * 2, last_seconds * (len(self.sizes) == 1)) / last
        return last_seconds + slope * (size - last)


def pooled(curves: Sequence[Points]) -> LearnedCurve | None:
    """One curve of several engines of a kind: at each size the median of those that know it.

    An engine knows a size that lies within what it has seen. None where no engine has a point.
    """
    known = [_sound(curve) for curve in curves]
    known = [curve for curve in known if curve]
    if not known:
        return None
    sizes = sorted({size for curve in known for size in curve})
    medians, spreads = [], []
    for size in sizes:
        there = np.array(
            [_read(curve, size) for curve in known if min(curve) <= size <= max(curve)]
        )
        medians.append(float(np.median(there)))
        if len(there) > 1:
            away = float(np.median(np.abs(there - medians[-1])))
            spreads.append(_MAD_TO_DEVIATION * away / medians[-1])
    return LearnedCurve(
        tuple(sizes),
        tuple(_rising(medians)),
        float(np.mean(spreads)) if spreads else None,
        len(known),
    )


def widened(curve: Points, model: Points) -> Points:
    """A curve that was seen, and beyond both its ends what a cost model says, on the ends' level.

    What was seen is surer, and reaches less far.
    """
    curve, model = _sound(curve), _sound(model)
    if not curve or not model:
        return curve or model
    ends = min(curve), max(curve)
    low, high = (curve[end] / _read(model, end) for end in ends)
    further = {
        size: seconds * (low if size < ends[0] else high)
        for size, seconds in model.items()
        if not ends[0] <= size <= ends[1]
    }
    return {**curve, **further}


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest values that never fall: falling neighbours become their mean (isotonic)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, several = pools.pop()
            mean, count = (before * several + mean * count) / (several + count), several + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def _sound(curve: Points) -> dict[float, float]:
    """What can be a step: a size and a time above 0, finite."""
    return {
        size: seconds
        for size, seconds in curve.items()
        if np.isfinite(size) and np.isfinite(seconds) and size > 0 and seconds > 0
    }


def _read(curve: Points, size: float) -> float:
    sizes = sorted(curve)
    return float(np.interp(size, sizes, [curve[each] for each in sizes]))
