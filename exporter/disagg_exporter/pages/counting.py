"""What an engine's pages count, counted on through all its restarts."""

from __future__ import annotations

from disagg_exporter.model import EnginePage, Histogram, ServingCounts
from disagg_exporter.pages.window import began_anew


def count_on(
    counts: ServingCounts | None, before: EnginePage | None, after: EnginePage
) -> ServingCounts:
    """Go on counting with a new page.

    Args:
        counts: What was counted so far; None at the first page, whose totals are the past.
        before: The last page that could be read; None where the engine has begun anew since.
        after: The new page.
    """
    if counts is None:
        before, counts = after, ServingCounts()
    old = before.serving if before is not None else ServingCounts()
    if before is not None and began_anew(before, after):
        old = ServingCounts()
    new = after.serving
    return ServingCounts(
        {
            total: counts.totals.get(total, 0.0)
            + max(new.totals.get(total, 0.0) - old.totals.get(total, 0.0), 0.0)
            if total in new.totals
            else counts.totals[total]
            for total in {**counts.totals, **new.totals}
        },
        _added(counts.time_to_first_token, old.time_to_first_token, new.time_to_first_token),
        _added(counts.inter_token_latency, old.inter_token_latency, new.inter_token_latency),
    )


def _added(
    counts: Histogram | None, old: Histogram | None, new: Histogram | None
) -> Histogram | None:
    if new is None:
        return counts
    nothing = Histogram(new.bounds_seconds, (0.0,) * len(new.counts), 0.0)
    counts, old = counts or nothing, old or nothing
    grown = [max(after - before, 0.0) for before, after in zip(old.counts, new.counts, strict=True)]
    # The observations since then, bucket by bucket, are what must stay ordered.
    ordered = [max(grown[: place + 1]) for place in range(len(grown))]
    return Histogram(
        new.bounds_seconds,
        tuple(count + more for count, more in zip(counts.counts, ordered, strict=True)),
        counts.sum_seconds + max(new.sum_seconds - old.sum_seconds, 0.0),
    )
