"""What was waited within a window, from two states of a histogram."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.model.serving import Histogram


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


def observed_since(later: Histogram | None, earlier: Histogram | None) -> Histogram | None:
    """What was observed between two states; None where one is missing or a counter began anew."""
    if later is None or earlier is None or later.bounds != earlier.bounds:
        return None
    counts = tuple(a - b for a, b in zip(later.counts, earlier.counts, strict=True))
    if any(count < 0 for count in counts):
        return None
    return Histogram(later.bounds, counts, later.sum - earlier.sum)


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
