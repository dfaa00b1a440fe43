"""The increase between two states of running counts."""

from __future__ import annotations

from itertools import accumulate

from disagg_exporter.model import Histogram, ServingCounts


def difference(old: ServingCounts, new: ServingCounts) -> ServingCounts:
    """Return the increase since; where anything decreased (a reset), all that is new."""
    if any(count > new.totals.get(total, 0.0) for total, count in old.totals.items()):
        old = ServingCounts()
    before = old.totals
    return ServingCounts(
        {total: count - before.get(total, 0.0) for total, count in new.totals.items()},
        _grown(old.time_to_first_token, new.time_to_first_token),
        _grown(old.inter_token_latency, new.inter_token_latency),
        _grown(old.duration, new.duration),
        _grown(old.prompt_tokens, new.prompt_tokens),
        _grown(old.output_tokens, new.output_tokens),
    )


def _grown(old: Histogram | None, new: Histogram | None) -> Histogram | None:
    if new is None or old is None:
        return new
    grown = max(new.sum - old.sum, 0.0)
    if new.counts == old.counts:
        return Histogram(new.bounds, (0.0,) * len(new.counts), grown)
    counts = (
        max(after - before, 0.0) for before, after in zip(old.counts, new.counts, strict=True)
    )
    return Histogram(new.bounds, tuple(accumulate(counts, max)), grown)


def added(one: Histogram | None, other: Histogram | None) -> Histogram | None:
    """Return the sum of both; their bounds are the same."""
    if one is None or other is None:
        return one or other
    counts = zip(one.counts, other.counts, strict=True)
    return Histogram(one.bounds, tuple(a + b for a, b in counts), one.sum + other.sum)
