"""Least squares whose answers are never negative, for a handful of unknowns.

The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on
the normal equations, as Bro and De Jong do (J. Chemometrics 11, 1997): what a fit must remember
is then a small square matrix, however many observations it has seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]

_TINY = 1e-10
# A sum of squares this small is nothing, and its root would not be safe to divide by.
_UNSEEN = 1e-100
# Added to the diagonal of the scaled matrix, so that twins share an answer instead of exploding.
_RIDGE = 1e-9


def solve(gram: ArrayLike, moments: ArrayLike) -> Numbers:
    """Return the x ≥ 0 that makes ‖Ax − b‖ least, given `gram` = AᵀA and `moments` = Aᵀb.

    A column that was never seen (0 on the diagonal) gets 0. Columns are scaled to length one
    first, so their units do not matter.
    """
    gram, moments = np.asarray(gram, np.float64), np.asarray(moments, np.float64)
    squares = gram.diagonal()
    seen = squares > _UNSEEN
    scale = np.where(seen, 1 / np.sqrt(np.where(seen, squares, 1.0)), 0.0)
    g = gram * np.outer(scale, scale)
    g[np.diag_indices_from(g)] += _RIDGE
    h = moments * scale
    least_gain = _TINY * max(np.abs(h).max(initial=0.0), 0.0)
    x, free = np.zeros(len(h)), np.zeros(len(h), np.bool_)
    for _ in range(3 * len(h)):
        gains = np.where(seen & ~free, h - g @ x, 0.0)
        if not len(gains) or gains.max() <= least_gain:
            break
        free[gains.argmax()] = True
        _settle(g, h, x, free)
    return x * scale


def _settle(g: Numbers, h: Numbers, x: Numbers, free: NDArray[np.bool_]) -> None:
    """Move x to the best answer in the free unknowns, binding those that would go below 0."""
    while free.any():
        at = np.flatnonzero(free)
        unbounded = np.linalg.solve(g[np.ix_(at, at)], h[at])
        if unbounded.min() > 0:
            x[at] = unbounded
            return
        now, below = x[at], unbounded <= 0
        ways = np.full(len(at), np.inf)
        steps = now[below] - unbounded[below]
        ways[below] = np.where(steps > 0, now[below] / np.where(steps > 0, steps, 1.0), 0.0)
        first = int(ways.argmin())
        x[at] = np.maximum(now + ways[first] * (unbounded - now), 0.0)
        x[at[first]] = 0.0
        free[at[first]] = False
