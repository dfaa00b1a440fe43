"""What was waited within a window, from two states of a histogram, and whether that is too long."""

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
    """What users are promised: to the first token, and from one token to the next."""

    ttft_seconds: float = 0.5
    itl_seconds: float = 0.05


def merged(histograms: Iterable[Histogram]) -> Histogram | None:
    """All of them as one, by the bounds of the first; None of none."""
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
    """What one counter observed between two states.

    Counts that fell are of a counter that began anew: all of them are then later.
    """
    before = earlier.at(later.bounds)
    counts = tuple(a - b for a, b in zip(later.counts, before.counts, strict=True))
    if any(count < 0 for count in counts):
        return later
    return Histogram(later.bounds, counts, later.sum - before.sum)


def quantile(histogram: Histogram | None, part: float) -> float | None:
    """What that part of all observations stayed below, as PromQL's histogram_quantile estimates it.

    Within a bucket they are taken as even, the lowest begins at 0; beyond the last bound that bound
    is said. None where nothing was observed.
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
    """The mean of all observations; None where nothing was observed."""
    return histogram.sum / histogram.total if histogram and histogram.total > 0 else None


def are_late(
    first_token: Histogram | None, between_tokens: Histogram | None, targets: LatencyTargets
) -> bool:
    """Whether tokens come late, as alerts/rules/disagg-recording-verdict.yaml calls it.

    That is more than a twentieth of at least 20 first tokens, or of 5000 tokens after them.

    Args:
        first_token: Users' times to first token over the last five minutes; None if not known.
        between_tokens: The times from one token to the next, likewise.
        targets: What late is.
    """
    return _has_late(first_token, targets.ttft_seconds, _LEAST_REQUESTS) or _has_late(
        between_tokens, targets.itl_seconds, _LEAST_TOKENS
    )


def _has_late(waits: Histogram | None, target_seconds: float, least: float) -> bool:
    if waits is None or waits.total < least:
        return False
    # Where the target lies within a bucket, what is in it is not known to be late.
    place = bisect_left(waits.bounds, target_seconds)
    return waits.total - waits.counts[place] > _LATE_RATIO * waits.total
