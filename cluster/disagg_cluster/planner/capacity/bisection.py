"""The largest value at which something still holds."""

from __future__ import annotations

from collections.abc import Callable

_ROUNDS = 30
_NEAR = 1e-3


def largest(holds: Callable[[float], bool], most: float) -> float:
    """Find by bisection the largest value from 0 to `most` at which `holds`, to a thousandth.

    Whatever holds at a value holds at all smaller ones. 0 where it holds at none.
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
