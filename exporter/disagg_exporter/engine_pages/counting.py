"""What an engine's pages count, counted on through all its restarts."""

from __future__ import annotations

from itertools import accumulate

from disagg_exporter.engine_pages.window import began_anew
from disagg_exporter.model import EnginePage, Histogram, ServingCounts


class Tally:
    """What one engine has counted since its page was first seen."""

    def __init__(self) -> None:
        self._before: EnginePage | None = None
        self.counts: ServingCounts | None = None

    def take(self, page: EnginePage) -> None:
        """Take the next page that could be read; what the first one counts is the past."""
        before = self._before
        other = before is not None and (before.kind, before.ranks) != (page.kind, page.ranks)
        if self.counts is None or other:
            self.counts = _grown(self.counts or ServingCounts(), page.serving, page.serving)
        elif before is None or began_anew(before, page):
            self.counts = _grown(self.counts, ServingCounts(), page.serving)
        elif page.serving is not before.serving:  # it is, as long as the engine rests
            self.counts = _grown(self.counts, before.serving, page.serving)
        self._before = page

    def begin_anew(self) -> None:
        """Take the next page as that of another process, which began to count at 0."""
        self._before = None


def _grown(counts: ServingCounts, old: ServingCounts, new: ServingCounts) -> ServingCounts:
    totals, before = dict(counts.totals), old.totals
    for total, count in new.totals.items():
        totals[total] = totals.get(total, 0.0) + max(count - before.get(total, 0.0), 0.0)
    return ServingCounts(
        totals,
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
    ordered = accumulate(grown, max)
    return Histogram(
        new.bounds_seconds,
        tuple(count + more for count, more in zip(counts.counts, ordered, strict=True)),
        counts.sum_seconds + max(new.sum_seconds - old.sum_seconds, 0.0),
    )
