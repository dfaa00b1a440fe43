"""The histogram of a sum of two durations, of each of which only the histogram is known.

A user whose request goes to a prefill engine and then to a decode engine waits for both. Neither
knows of the other, so what is known of the whole is the convolution of the two histograms: right
where the parts are independent and spread evenly within their buckets.

It is linear in each of the two, by coefficients that depend on the bounds alone. The same ones
stand in the recording rules that join pools over nodes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.model import Histogram

Bounds = tuple[float, ...]
Array = NDArray[np.float64]


@lru_cache(maxsize=16)
def coefficients(first: Bounds, second: Bounds, whole: Bounds) -> Array:
    """Return the weights [t, i, j] by which P(X + Y <= t) is a sum of P(X in i) x P(Y <= j).

    `t` runs over the bounds of the whole, `i` over the buckets of the first, `j` over the bounds of
    the second. P(X + Y <= t) is the sum over i of P(X in i) times the mean of P(Y <= t - x) over x
    in i; P(Y <= y) is taken to be linear between bounds, so that mean is linear in its values
    there. What is above the last bound of either part is above every bound of the whole.
    """
    edges = (0.0, *second)
    return np.array(
        [
            [_weights(end, low, high, edges) for low, high in pairwise((0.0, *first))]
            for end in whole
        ]
    )


def _weights(end: float, low: float, high: float, edges: Bounds) -> list[float]:
    """How much P(Y <= each bound) weighs in its mean over y from `end - high` to `end - low`."""
    weights = [0.0] * len(edges)
    start, stop = max(end - high, 0.0), max(end - low, 0.0)
    for place, (left, right) in enumerate(pairwise(edges)):
        begin, until = max(start, left), min(stop, right)
        if begin < until:
            length = until - begin
            upper = length * ((begin + until) / 2 - left) / (right - left)
            weights[place] += length - upper
            weights[place + 1] += upper
    # Beyond the last bound nothing more is known to have come.
    weights[-1] += max(stop - max(start, edges[-1]), 0.0)
    # P(Y <= 0) is 0.
    return [weight / (high - low) for weight in weights[1:]]


def convolved(first: Histogram, second: Histogram, whole: Bounds) -> Histogram | None:
    """Return the histogram of the sum of both, with as many observations as the second has.

    None where the first has none.
    """
    if first.total <= 0:
        return None
    inside = np.diff(first.counts[:-1], prepend=0.0) / first.total
    weights = coefficients(first.bounds, second.bounds, whole)
    counts = inside @ (weights @ np.array(second.counts[:-1])).T
    most = second.total
    return Histogram(
        whole,
        (*np.minimum(np.maximum.accumulate(counts), most).tolist(), most),
        second.sum + most * first.sum / first.total,
    )
