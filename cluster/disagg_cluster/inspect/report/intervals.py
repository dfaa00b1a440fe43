"""How often a rule was evaluated in each bucket: within a period that may have been changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_MOST_TRIES = 4
_FULL_RATIO = 0.8
_LONGER = 1.5


def intervals(
    counts: Mapping[int, float],
    shortest_seconds: float,
    bucket_seconds: int,
    interval_of: Callable[[int], float | None],
) -> dict[int, float]:
    """Return the evaluation interval in each bucket, in seconds.

    Few samples in a bucket are a gap, or those of a longer interval, which then holds as far as
    buckets have as few.

    Args:
        counts: Samples of a series by the end of each bucket that has any.
        shortest_seconds: The interval in the bucket with the most samples.
        bucket_seconds: Length of a bucket.
        interval_of: Reads the interval in the bucket that ends there; None if it has one sample.
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
        seconds = interval_of(fullest)
        thin.discard(fullest)
        if seconds is None or seconds < _LONGER * shortest_seconds:
            continue
        found[fullest] = seconds
        for step in (bucket_seconds, -bucket_seconds):
            end = fullest + step
            while end in thin:
                found[end] = seconds
                thin.discard(end)
                end += step
    return found
