"""The histogram of the sum of two durations, given only the histogram of each.

A user whose request goes to a prefill engine and then to a decode engine waits for both. Neither
knows of the other, so the best estimate is the convolution of the two histograms: exact where the
parts are independent and spread evenly over the part of their buckets that the means imply.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.model import Histogram

Bounds = tuple[float, ...]
Array = NDArray[np.float64]

_MOST_TILT = 0.45
"""Farthest assumed offset of observations from their bucket's middle, as a share of its width."""


def _below(ends: Bounds, first: tuple[Array, Array], second: tuple[Array, Array]) -> Array:
    """Return P(X + Y <= end) [end, i, j] for X, Y evenly spread over (low, high) of `i` and `j`.

    The sum of two uniform variables is the difference of four squared ramps over twice the area.
    """
    (low_x, high_x), (low_y, high_y) = first, second
    width_x, width_y = (high_x - low_x)[:, None], (high_y - low_y)[None, :]
    z = np.array(ends)[:, None, None] - low_x[None, :, None] - low_y[None, None, :]

    def ramp(shift: Array | float) -> Array:
        squared: Array = np.maximum(z - shift, 0.0) ** 2
        return squared

    area = ramp(0.0) - ramp(width_x) - ramp(width_y) + ramp(width_x + width_y)
    share: Array = area / (2 * width_x * width_y)
    return share


@lru_cache(maxsize=8)
def coefficients(first: Bounds, second: Bounds, whole: Bounds) -> Array:
    """Return the weights [t, i, j] by which P(X + Y <= t) is a sum of P(X in i) x P(Y <= j).

    `t` runs over the bounds of the whole, `i` over the buckets of the first, `j` over the bounds of
    the second; observations are spread evenly over their buckets. What is above the last bound of
    either part is above every bound of the whole.
    """
    below = _below(whole, _spread(first, 0.0), _spread(second, 0.0))
    # P(Y in j) is P(Y <= j) minus P(Y <= j - 1).
    return np.asarray(below - np.pad(below[:, :, 1:], ((0, 0), (0, 0), (0, 1))))


def convolved(first: Histogram, second: Histogram, whole: Bounds) -> Histogram | None:
    """Return the histogram of the sum of both, with as many observations as the second has.

    None where the first has none.
    """
    if first.total <= 0:
        return None
    below = _below(whole, _spread_of(first), _spread_of(second))
    counts = np.einsum("tij,i,j->t", below, _inside(first) / first.total, _inside(second))
    most = second.total
    return Histogram(
        whole,
        (*np.clip(np.maximum.accumulate(counts), 0.0, most).tolist(), most),
        second.sum + most * first.sum / first.total,
    )


def _inside(histogram: Histogram) -> Array:
    """Return the observations in each bucket, without those above the last bound."""
    inside = np.array(histogram.counts[:-1], np.float64)
    inside[1:] -= inside[:-1].copy()
    return inside


def _spread_of(histogram: Histogram) -> tuple[Array, Array]:
    """Return where in its buckets the observations of a histogram lie, judged by its mean."""
    inside = _inside(histogram)
    edges = np.array((0.0, *histogram.bounds))
    widths = np.diff(edges)
    weight = float(inside @ widths)
    if weight <= 0 or inside.sum() < histogram.total:
        return _spread(histogram.bounds, 0.0)
    even = float(inside @ (edges[:-1] + edges[1:])) / 2
    return _spread(histogram.bounds, (histogram.sum - even) / weight)


def _spread(bounds: Bounds, tilt: float) -> tuple[Array, Array]:
    """Return lower and upper ends of the range of observations in each bucket.

    With a tilt of -0.25 their mean is a quarter of the bucket below its middle: they are in its
    lower half.
    """
    edges = np.array((0.0, *bounds))
    low, high = edges[:-1], edges[1:]
    tilt = min(max(tilt, -_MOST_TILT), _MOST_TILT)
    free = 2 * abs(tilt) * (high - low)
    return (low + free, high) if tilt > 0 else (low, high - free)
