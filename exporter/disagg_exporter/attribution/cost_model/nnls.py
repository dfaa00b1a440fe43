"""Non-negative least squares for a few unknowns.

The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on
the normal equations, as by Bro and De Jong (J. Chemometrics 11, 1997): a fit then has to keep only
a small square matrix, however many observations it has.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]

_TINY = 1e-10
# A sum of squares this small counts as 0; its root would not be safe to divide by.
_UNSEEN = 1e-100
# Added to the diagonal of the scaled matrix, so that identical columns share a coefficient.
_RIDGE = 1e-9


def solve(gram: ArrayLike, moments: ArrayLike) -> Numbers:
    """Return the x ≥ 0 that minimizes ‖Ax − b‖, given `gram` = AᵀA and `moments` = Aᵀb.

    A column without observations (0 on the diagonal) gets 0. Columns are first scaled to length
    one, so their units do not matter.
    """
    g, h, scale = _scaled(np.asarray(gram, np.float64), np.asarray(moments, np.float64))
    least_gain = _TINY * max(np.abs(h).max(initial=0.0), 0.0)
    unseen = scale == 0
    x, free = np.zeros(len(h)), np.zeros(len(h), np.bool_)
    for _ in range(3 * len(h)):
        gains = h - g @ x
        gains[free | unseen] = 0.0
        best = gains.argmax()
        if gains[best] <= least_gain:
            break
        free[best] = True
        _settle(g, h, x, free)
    return x * scale


def solve_each(grams: Numbers, moments: Numbers) -> Numbers:
    """Solve many problems: `grams[problem, i, j]`, `moments[problem, i]` to `[problem, i]`.

    Every set of positive unknowns is tried in one LAPACK call: for up to four unknowns this is much
    faster than solving the problems one by one.
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
    """Return the problem with columns of length one, and the factors for its solution."""
    squares = grams.diagonal(axis1=-2, axis2=-1)
    seen = squares > _UNSEEN
    scale = np.where(seen, 1 / np.sqrt(np.where(seen, squares, 1.0)), 0.0)
    scaled = grams * scale[..., :, None] * scale[..., None, :] + _ridge(squares.shape[-1])
    return scaled, moments * scale, scale


@cache
def _ridge(unknowns: int) -> Numbers:
    ridge: Numbers = _RIDGE * np.eye(unknowns)
    return ridge


def _settle(g: Numbers, h: Numbers, x: Numbers, free: NDArray[np.bool_]) -> None:
    """Move x to the optimum of the free unknowns, binding those that would go below 0."""
    while free.any():
        at = np.flatnonzero(free)
        unbounded = np.linalg.solve(g[at[:, None], at], h[at])
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
