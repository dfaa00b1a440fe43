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
    g, h, scale = _scaled(np.asarray(gram, np.float64), np.asarray(moments, np.float64))
    seen = scale > 0
    least_gain = _TINY * max(np.abs(h).max(initial=0.0), 0.0)
    x, free = np.zeros(len(h)), np.zeros(len(h), np.bool_)
    for _ in range(3 * len(h)):
        gains = np.where(seen & ~free, h - g @ x, 0.0)
        if not len(gains) or gains.max() <= least_gain:
            break
        free[gains.argmax()] = True
        _settle(g, h, x, free)
    return x * scale


def solve_each(grams: Numbers, moments: Numbers) -> Numbers:
    """The same of many alike: `grams[problem, i, j]`, `moments[problem, i]` to `[problem, i]`.

    Every set of unknowns that may be above 0 is tried, in one call of LAPACK: for four of them and
    fewer that is much quicker than one problem after the other.
    """
    g, h, scale = _scaled(grams, moments)
    unknowns = h.shape[-1]
    sets = np.arange(2**unknowns)[:, None] >> np.arange(unknowns) & 1
    free = sets[:, None, :] * (scale > 0)
    bound = np.eye(unknowns) * (1 - free)[..., None]
    tried = np.linalg.solve(
        g * (free[..., :, None] * free[..., None, :]) + bound, (h * free)[..., None]
    )[..., 0]
    gains = np.where((tried < 0).any(axis=-1), -np.inf, (h * tried).sum(axis=-1))
    best = gains.argmax(axis=0)
    found: Numbers = np.take_along_axis(tried, best[None, :, None], axis=0)[0] * scale
    return found


def _scaled(grams: Numbers, moments: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The problem in columns of length one, and what its answer is to be multiplied by."""
    squares = grams.diagonal(axis1=-2, axis2=-1)
    seen = squares > _UNSEEN
    scale = np.where(seen, 1 / np.sqrt(np.where(seen, squares, 1.0)), 0.0)
    ridge = _RIDGE * np.eye(squares.shape[-1])
    return grams * scale[..., :, None] * scale[..., None, :] + ridge, moments * scale, scale


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
