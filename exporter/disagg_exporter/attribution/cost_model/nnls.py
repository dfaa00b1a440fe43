"""Least squares whose answers are never negative, for a handful of unknowns.

The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on
the normal equations, as Bro and De Jong do (J. Chemometrics 11, 1997): what a fit must remember
is then a small square matrix, however many observations it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_TINY = 1e-10
# A sum of squares this small is nothing, and its root would not be safe to divide by.
_UNSEEN = 1e-100
# Added to the diagonal of the scaled matrix, so that twins share an answer instead of exploding.
_RIDGE = 1e-9


def solve(gram: Sequence[Sequence[float]], moments: Sequence[float]) -> tuple[float, ...]:
    """Return the x ≥ 0 that makes ‖Ax − b‖ least, given `gram` = AᵀA and `moments` = Aᵀb.

    A column that was never seen (0 on the diagonal) gets 0. Columns are scaled to length one
    first, so their units do not matter.
    """
    scale = [
        1 / math.sqrt(gram[i][i]) if gram[i][i] > _UNSEEN else 0.0 for i in range(len(moments))
    ]
    g = [
        [value * scale[i] * scale[j] + _RIDGE * (i == j) for j, value in enumerate(row)]
        for i, row in enumerate(gram)
    ]
    h = [value * scale[i] for i, value in enumerate(moments)]
    least_gain = _TINY * max((abs(value) for value in h), default=0.0)
    x = [0.0] * len(h)
    free: list[int] = []
    for _ in range(3 * len(h)):
        gains = {
            i: h[i] - sum(g[i][j] * x[j] for j in free)
            for i in range(len(h))
            if i not in free and scale[i]
        }
        best = max(gains, key=gains.__getitem__, default=None)
        if best is None or gains[best] <= least_gain:
            break
        free.append(best)
        _settle(g, h, x, free)
    return tuple(value * factor for value, factor in zip(x, scale, strict=True))


def _settle(g: list[list[float]], h: list[float], x: list[float], free: list[int]) -> None:
    """Move x to the best answer in the free unknowns, binding those that would go below 0."""
    while free:
        unbounded = _solve_positive(
            [[g[i][j] for j in free] for i in free],
            [h[i] for i in free],
        )
        if min(unbounded) > 0:
            for i, value in zip(free, unbounded, strict=True):
                x[i] = value
            return
        ways = {
            i: x[i] / (x[i] - value) if x[i] > value else 0.0
            for i, value in zip(free, unbounded, strict=True)
            if value <= 0
        }
        first = min(ways, key=ways.__getitem__)
        for i, value in zip(free, unbounded, strict=True):
            x[i] = max(x[i] + ways[first] * (value - x[i]), 0.0)
        x[first] = 0.0
        free.remove(first)


def _solve_positive(a: list[list[float]], b: list[float]) -> list[float]:
    """Return x with a·x = b for a symmetric positive definite `a` (Cholesky)."""
    size = len(b)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = a[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = math.sqrt(max(rest, _RIDGE)) if i == j else rest / lower[j][j]
    y = [0.0] * size
    for i in range(size):
        y[i] = (b[i] - sum(lower[i][k] * y[k] for k in range(i))) / lower[i][i]
    x = [0.0] * size
    for i in reversed(range(size)):
        x[i] = (y[i] - sum(lower[k][i] * x[k] for k in range(i + 1, size))) / lower[i][i]
    return x
