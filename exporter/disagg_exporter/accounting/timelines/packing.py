"""Placing steps in time (accounting A2).

An engine stamps a step when it *reports* it, and reports burst and stall. What is certain is the
order, the length of each step and that none ends after its report. So spans are packed: in
order, without overlap, each as late as possible but ending no later than its limit. Pushing a
span earlier to make room is allowed down to the floor, below which time is already committed;
what does not fit there is the span's overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Placed(NamedTuple):
    """Where spans came to lie, and how much of each found no room."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    overflow_ns: NDArray[np.int64]


def pack(limits_ns: ArrayLike, lengths_ns: ArrayLike, floor_ns: int) -> Placed:
    """Place spans of the given lengths, each ending by its limit, none below the floor.

    The spans come in order. Placed length plus overflow is always the span's length.

    A span ends by its own limit and by each later one's less all that lies in between: with sums
    of the lengths, by the least of (limit − sum) from it on, plus its own sum.
    """
    limits, wanted = np.asarray(limits_ns, np.int64), np.asarray(lengths_ns, np.int64)
    # No more than there is room for: the sum of what hostile engines claim has more than 63 bits.
    lengths = np.minimum(wanted, np.maximum(limits - floor_ns, 0))
    sums = np.cumsum(lengths)
    ends = np.minimum.accumulate((limits - sums)[::-1])[::-1] + sums
    starts = np.maximum(ends - lengths, floor_ns)
    ends = np.maximum(ends, floor_ns)
    return Placed(starts, ends, wanted - (ends - starts))
