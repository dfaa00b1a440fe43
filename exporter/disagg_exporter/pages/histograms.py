"""Histograms of engines, told anew with few bounds of our own.

Engines have 18 to 24 bounds, each others. Ours are eleven, taken from theirs. Where one of ours is
one of theirs the count is exact. Where it is not, the count at the next bound *below* is taken: an
observation in between moves up into our next bucket. So a quantile is never told too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from disagg_exporter.model import Histogram
from disagg_exporter.pages.lines import Found, PageError, Sample

FIRST_TOKEN_BOUNDS_SECONDS = (0.01, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0)
BETWEEN_TOKENS_BOUNDS_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0, 2.5, 10.0)


def histogram(found: Found, name: str, bounds_seconds: tuple[float, ...]) -> Histogram | None:
    """Return a page's histogram, all label sets added up; None where the page has none.

    Raises:
        PageError: A bucket is no count, less than one below it, or without its bound.
    """
    buckets = _by_labels(found.get(f"{name}_bucket", ()))
    if not buckets:
        return None
    counts = [0.0] * (len(bounds_seconds) + 1)
    for points in buckets:
        for position, count in enumerate(_rebinned(name, sorted(points), bounds_seconds)):
            counts[position] += count
    total_seconds = math.fsum(sample.value for sample in found.get(f"{name}_sum", ()))
    if not math.isfinite(total_seconds):
        raise PageError(f"{name}_sum is no sum")
    return Histogram(bounds_seconds, tuple(counts), max(total_seconds, 0.0))


def _by_labels(samples: Iterable[Sample]) -> list[list[tuple[float, float]]]:
    """The (bound, count) points of each label set."""
    sets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for labels, value in samples:
        rest = tuple(sorted(pair for pair in labels.items() if pair[0] != "le"))
        try:
            bound = float(labels.get("le", ""))
        except ValueError:
            raise PageError("a bucket has no bound") from None
        sets.setdefault(rest, []).append((bound, value))
    return list(sets.values())


def _rebinned(
    name: str, points: Sequence[tuple[float, float]], bounds_seconds: tuple[float, ...]
) -> list[float]:
    counts = [count for _, count in points]
    sane = all(0 <= count <= 2.0**63 for count in counts) and counts == sorted(counts)
    if not sane or points[-1][0] != math.inf:
        raise PageError(f"{name}_bucket is no histogram")
    out, below, position = [], 0.0, 0
    for ours in (*bounds_seconds, math.inf):
        while position < len(points) and points[position][0] <= ours:
            below = points[position][1]
            position += 1
        out.append(below)
    return out
