"""What was waited within a window, from two states of a histogram."""

from __future__ import annotations

import math

from disagg_cluster.top.look.values import LatencyBuckets


def since(later: LatencyBuckets | None, earlier: LatencyBuckets | None) -> LatencyBuckets | None:
    """What was counted between two states; None if the later is unknown.

    Counts that fell are of a counter that began anew: all of them are then later.
    """
    if later is None or earlier is None:
        return later
    before = dict(earlier.counts)
    counts = tuple((bound, count - before.get(bound, 0.0)) for bound, count in later.counts)
    return later if any(count < 0 for _, count in counts) else LatencyBuckets(counts)


def quantile(buckets: LatencyBuckets | None, part: float) -> float | None:
    """What that part of all waits stayed below, as Prometheus' histogram_quantile estimates it.

    Within a bucket waits are taken as even, the lowest begins at 0; beyond the last finite bound
    that bound is said. None where nothing was counted.
    """
    counts = buckets.counts if buckets is not None else ()
    if not counts or counts[-1][1] <= 0:
        return None
    rank = part * counts[-1][1]
    low, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (count - below) if count > below else low
        low, below = bound, count
    return low
