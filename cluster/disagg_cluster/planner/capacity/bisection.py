"""Bisection for the largest value that satisfies a condition."""

from __future__ import annotations

from collections.abc import Callable

_ROUNDS = 30
_NEAR = 1e-3


def largest(holds: Callable[[float], bool], most: float) -> float:
    """Return the largest value from 0 to `most` at which `holds` is true, to a thousandth.

    `holds` has to be true below any value at which it is true. 0 if it is true nowhere.
    """
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
        if high - low <= _NEAR * low:
            break
    return low
