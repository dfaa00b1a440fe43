"""Step times by size, learned from several engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.engine_costs import UnseenStepError
from disagg_exporter.capacity.curves.curve import MAD_TO_DEVIATION
from disagg_exporter.capacity.curves.limits import isotonic

Points = Mapping[float, float]
"""Seconds of a step by its size; both are above 0."""

REACH = 2.0
"""Step times are predicted up to this multiple of the largest observed size."""


@dataclass(frozen=True, slots=True)
class LearnedCurve:
    """Seconds by size, never falling.

    Linear between points, constant below the first. Beyond the last it continues the line from
    half of the last size, or from 0 if there is only one point: sizes that were not observed are
    assumed to cost more, not less. `spread` is the standard deviation of engines from each other,
    over their median; None for a single engine.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    spread: float | None
    engines: int

    @property
    def largest(self) -> float:
        """The largest observed size."""
        return self.sizes[-1]

    def at(self, size: float) -> float:
        """Time of a step of this size.

        Raises:
            UnseenStepError: The size is beyond `REACH`.
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
    """One curve of several engines of a kind: at each size the median of those that cover it.

    An engine covers all sizes within its observed range. None if no engine has a point.
    """
    known = [_valid(curve) for curve in curves]
    known = [curve for curve in known if curve]
    if not known:
        return None
    sizes = sorted({size for curve in known for size in curve})
    medians, spreads = [], []
    for size in sizes:
        seconds = np.array(
            [_interpolated(curve, size) for curve in known if min(curve) <= size <= max(curve)]
        )
        medians.append(float(np.median(seconds)))
        if len(seconds) > 1:
            deviation = float(np.median(np.abs(seconds - medians[-1])))
            spreads.append(MAD_TO_DEVIATION * deviation / medians[-1])
    return LearnedCurve(
        tuple(sizes),
        tuple(isotonic((each, 1) for each in medians)),
        float(np.mean(spreads)) if spreads else None,
        len(known),
    )


def extended(curve: Points, model: Points) -> Points:
    """An observed curve, extended beyond both ends by a cost model scaled to match them.

    The observed curve is more certain, but covers a smaller range.
    """
    curve, model = _valid(curve), _valid(model)
    if not curve or not model:
        return curve or model
    ends = min(curve), max(curve)
    low, high = (curve[end] / _interpolated(model, end) for end in ends)
    further = {
        size: seconds * (low if size < ends[0] else high)
        for size, seconds in model.items()
        if not ends[0] <= size <= ends[1]
    }
    return {**curve, **further}


def _valid(curve: Points) -> dict[float, float]:
    """The points with a finite size and time above 0."""
    return {
        size: seconds
        for size, seconds in curve.items()
        if np.isfinite(size) and np.isfinite(seconds) and size > 0 and seconds > 0
    }


def _interpolated(curve: Points, size: float) -> float:
    sizes = sorted(curve)
    return float(np.interp(size, sizes, [curve[each] for each in sizes]))
