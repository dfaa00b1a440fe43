"""Interpolation of values on a rectangular grid."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

Point = tuple[float, ...]


class Grid:
    """A function known at every crossing of some axes.

    Between two points it is linear in each direction, which is exact for products such as requests
    × cache. Below the first point of an axis it is constant. Beyond the last it is an extrapolation
    along the line from half of the last point to the last: times of kernels are step functions,
    whose trend two neighbours do not show.

    Args:
        values: The value at each point; as many coordinates each, at least one.

    Raises:
        ValueError: A crossing has no value; says which.
    """

    def __init__(self, values: Mapping[Point, float]) -> None:
        dimensions = len(next(iter(values)))
        self.axes = tuple(
            tuple(sorted({point[number] for point in values})) for number in range(dimensions)
        )
        missing = [point for point in product(*self.axes) if point not in values]
        if missing:
            raise ValueError(f"no value at {missing[0]}, and {len(missing) - 1} more points")
        self._values = [values[point] for point in product(*self.axes)]
        sizes = [len(axis) for axis in self.axes]
        self._strides = [prod(sizes[number + 1 :]) for number in range(dimensions)]
        self.first = self._values[0]
        """The value at the first crossing, and below it."""

    def at(self, *point: float) -> float:
        """Return the value there."""
        match point:
            # Most parts of a step's price are functions of one or two figures.
            case (only,) if len(self.axes) == 1:
                return self._at_one(only)
            case (first, second) if len(self.axes) == 2:
                return self._at_two(first, second)
        corners = [(0, 1.0)]
        for axis, stride, place in zip(self.axes, self._strides, point, strict=True):
            low, high, part = _between(axis, place)
            if part:
                corners = [
                    (start + side * stride, weight * share)
                    for start, weight in corners
                    for side, share in ((low, 1.0 - part), (high, part))
                ]
            else:
                corners = [(start + low * stride, weight) for start, weight in corners]
        values = self._values
        return sum([values[index] * weight for index, weight in corners])

    def _at_one(self, place: float) -> float:
        low, high, part = _between(self.axes[0], place)
        return self._values[low] * (1.0 - part) + self._values[high] * part

    def _at_two(self, first: float, second: float) -> float:
        low, high, part = _between(self.axes[0], first)
        left, right, share = _between(self.axes[1], second)
        values, stride = self._values, self._strides[0]
        low, high = low * stride, high * stride
        return (
            values[low + left] * ((1.0 - part) * (1.0 - share))
            + values[low + right] * ((1.0 - part) * share)
            + values[high + left] * (part * (1.0 - share))
            + values[high + right] * (part * share)
        )


def _between(axis: Sequence[float], place: float) -> tuple[int, int, float]:
    """Return two points of an axis, by number, and the position of `place` between them."""
    if place <= axis[0] or len(axis) == 1:
        return 0, 0, 0.0
    low, high = bisect_right(axis, place) - 1, len(axis) - 1
    if low < high:
        return low, low + 1, (place - axis[low]) / (axis[low + 1] - axis[low])
    if place == axis[high]:
        return high, high, 0.0
    low = min(max(bisect_right(axis, axis[high] / 2) - 1, 0), high - 1)
    return low, high, (place - axis[low]) / (axis[high] - axis[low])
