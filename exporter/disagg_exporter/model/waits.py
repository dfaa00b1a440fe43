"""Waits within a time window, from two states of a histogram, and whether they are too long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from disagg_exporter.model.serving import Histogram

LATE_WINDOW_SECONDS = 300.0
_LATE_RATIO = 0.05
_LEAST_REQUESTS = 20.0
_LEAST_TOKENS = 5000.0


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """Latency targets: time to first token, and between tokens."""

    ttft_seconds: float = 0.5
    itl_seconds: float = 0.05


def merged(histograms: Iterable[Histogram]) -> Histogram | None:
    """Return the sum of all histograms, by the bounds of the first; None if there are none."""
    whole: Histogram | None = None
    for each in histograms:
        if whole is None:
            whole = each
            continue
        other = each.at(whole.bounds)
        counts = tuple(a + b for a, b in zip(whole.counts, other.counts, strict=True))
        whole = Histogram(whole.bounds, counts, whole.sum + other.sum)
    return whole


def since(later: Histogram, earlier: Histogram) -> Histogram:
    """Return what one counter observed between two states.

    If a count decreased, the counter was reset: everything in `later` is new then.
    """
    before = earlier.at(later.bounds)
    counts = tuple(a - b for a, b in zip(later.counts, before.counts, strict=True))
    if any(count < 0 for count in counts):
        return later
    return Histogram(later.bounds, counts, later.sum - before.sum)


def quantile(histogram: Histogram | None, part: float) -> float | None:
    """Return the value that `part` of all observations stayed below, like histogram_quantile.

    As PromQL does, it takes observations as evenly spread within a bucket, with the lowest bucket
    beginning at 0; beyond the last bound it returns that bound. None without observations.
    """
    if histogram is None or histogram.total <= 0:
        return None
    rank = part * histogram.total
    low = below = 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        if count >= rank:
            inside = (rank - below) / (count - below) if count > below else 0.0
            return low + (bound - low) * inside
        low, below = bound, count
    return low


def mean(histogram: Histogram | None) -> float | None:
    """Return the mean of all observations; None where nothing was observed."""
    return histogram.sum / histogram.total if histogram and histogram.total > 0 else None


def are_late(
    first_token: Histogram | None, between_tokens: Histogram | None, targets: LatencyTargets
) -> bool:
    """Return whether tokens come late, as alerts/rules/disagg-recording-verdict.yaml defines it.

    That is more than a twentieth of at least 20 first tokens, or of 5000 later tokens.

    Args:
        first_token: Users' times to first token over the last five minutes; None if not known.
        between_tokens: The times between tokens, likewise.
        targets: The latency targets.
    """
    return _has_late(first_token, targets.ttft_seconds, _LEAST_REQUESTS) or _has_late(
        between_tokens, targets.itl_seconds, _LEAST_TOKENS
    )


def _has_late(waits: Histogram | None, target_seconds: float, least: float) -> bool:
    if waits is None or waits.total < least:
        return False
    # Where the target lies within a bucket, observations in it are not known to be late.
    place = bisect_left(waits.bounds, target_seconds)
    return waits.total - waits.counts[place] > _LATE_RATIO * waits.total
