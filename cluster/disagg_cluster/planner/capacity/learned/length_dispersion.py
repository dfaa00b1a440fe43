"""How much lengths differ, by a histogram with few buckets and their sum.

A bucket says nothing of where in it the lengths are, and the last one not even how far it reaches:
engines have bounds of their own, up to the model's longest prompt, so whatever is longer than their
last bound is in our last bucket, be it ten times as long as an engine accepts. The sum of all
lengths is exact, however. Of all distributions with these counts and this sum the one nearest to
log-uniform buckets is taken: of least relative entropy, so each density is multiplied by
exp(tilt · length), with one tilt (Kullback 1959). Wide buckets thereby change most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disagg_cluster.planner.capacity.request_mix import MOST_TOKENS
from disagg_cluster.planner.history.load_series import Floats

_POINTS = 24
_BEYOND = 2.0
"""Lengths in the last bucket are assumed to reach this multiple of its lower bound, or of their
mean if that is larger."""
_LEAST_PART = 1e-6
"""A smaller part of all lengths in the last bucket is an error of rounding."""
_MOST_TILT = 1e5
"""Times the longest length: all of a bucket at one end of it."""
_HALVINGS = 60


def dispersion_of(
    bounds: Sequence[float], counts: Sequence[float], tokens: float | None = None
) -> float | None:
    """The squared coefficient of variation of lengths; None if there are none.

    Args:
        bounds: Upper bounds of the buckets, rising; the last may be infinite.
        counts: How many lengths are in each bucket, not cumulative.
        tokens: The sum of all lengths. None or 0 if it is not known: then within a bucket they are
            log-uniform.
    """
    total = sum(counts)
    uppers = [each for each in bounds if np.isfinite(each) and each > 0]
    if not total > 0 or not uppers:
        return None
    # The first bucket is taken to begin at a tenth of its bound.
    edges = [uppers[0] / 10, *uppers]
    found = list(counts)
    if len(found) == len(edges):
        last = found.pop()
        mean = 0.0
        if tokens and last > _LEAST_PART * total:
            below = _lengths(edges).mean(axis=1) @ np.array(found)
            mean = min((tokens - float(below)) / last, MOST_TOKENS)
        # Lengths of a mean below its lower bound: their engine has no bound there.
        while mean and len(edges) > 1 and edges[-1] > mean and not found[-1] > 0:
            edges.pop()
            found.pop()
        edges.append(_BEYOND * max(edges[-1], mean))
        found.append(last)
    return _dispersion(_lengths(edges), np.array(found) / total, (tokens or 0.0) / total)


def _lengths(edges: Sequence[float]) -> Floats:
    """Lengths `[bucket, point]` that represent log-uniform buckets."""
    lows, highs = np.array(edges[:-1])[:, None], np.array(edges[1:])[:, None]
    return np.asarray(lows * (highs / lows) ** ((np.arange(_POINTS) + 0.5) / _POINTS))


def _dispersion(lengths: Floats, parts: Floats, mean: float) -> float:
    """That of lengths of which `parts` are in each bucket; `mean` is 0 if it is not known."""
    first, second = _moments(lengths, parts, 0.0)
    if mean > 0:
        most = _MOST_TILT / float(lengths.max())
        least = -most
        for _ in range(_HALVINGS):
            tilt = (least + most) / 2
            first, second = _moments(lengths, parts, tilt)
            least, most = (tilt, most) if first < mean else (least, tilt)
    return max(0.0, second / first**2 - 1)


def _moments(lengths: Floats, parts: Floats, tilt: float) -> tuple[float, float]:
    """Means of the lengths, and of their squares."""
    powers = tilt * lengths
    weights = np.exp(powers - powers.max(axis=1, keepdims=True))
    weights *= (parts / weights.sum(axis=1))[:, None]
    return float((weights * lengths).sum()), float((weights * lengths**2).sum())
