"""How often a rule was evaluated in each bucket: within a period that may have been changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

SPAN_SECONDS = 1800
"""An interval is read from the samples of so long a time, or less."""

_MOST_TRIES = 4
_FULL_RATIO = 0.8
_LONGER = 1.5


def intervals(
    counts: Mapping[int, float],
    shortest_seconds: float,
    bucket_seconds: int,
    interval_of: Callable[[int, int], float | None],
) -> dict[int, float]:
    """Return the evaluation interval in each bucket, in seconds.

    Few samples in a bucket are a gap, or those of a longer interval, which then holds as far as
    buckets have as few. The bucket within which it was changed counts in full.

    Args:
        counts: Samples of a series by the end of each bucket that has any.
        shortest_seconds: The interval in the bucket with the most samples.
        bucket_seconds: Length of a bucket.
        interval_of: Reads the interval from a start to an end; None if there is one sample.
    """
    found = dict.fromkeys(counts, shortest_seconds)
    thin = {
        end
        for end, count in counts.items()
        if count * shortest_seconds < _FULL_RATIO * bucket_seconds
    }
    for _ in range(_MOST_TRIES):
        if not thin:
            break
        fullest = max(thin, key=lambda end: (counts[end], end))
        ends = _beside(fullest, thin, bucket_seconds)
        length_seconds = max(bucket_seconds, SPAN_SECONDS)
        stop = min(ends[-1], fullest - bucket_seconds + length_seconds)
        seconds = interval_of(max(ends[0] - bucket_seconds, stop - length_seconds), stop)
        thin.discard(fullest)
        if seconds is None or seconds < _LONGER * found[fullest]:
            continue
        for end in ends:
            full_seconds = bucket_seconds / counts[end]
            found[end] = seconds if seconds > bucket_seconds else min(seconds, full_seconds)
            if counts[end] * seconds >= _FULL_RATIO * bucket_seconds:
                thin.discard(end)
    return found


def _beside(end: int, thin: Set[int], bucket_seconds: int) -> range:
    """Return the ends of all thin buckets that follow each other, the given one among them."""
    first = last = end
    while first - bucket_seconds in thin:
        first -= bucket_seconds
    while last + bucket_seconds in thin:
        last += bucket_seconds
    return range(first, last + 1, bucket_seconds)
