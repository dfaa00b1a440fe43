"""What an engine did between two of its pages; its counts, continued across restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from disagg_exporter.engine_pages.adapters import forgets_aborted
from disagg_exporter.engine_pages.arrival_peak import ArrivalPeak
from disagg_exporter.engine_pages.exposition.lines import PageError
from disagg_exporter.model import EnginePage, Histogram, ServingCounts, Total

# Arrivals include the requests inside; some leave uncounted, so that arrivals may seem to fall.
_COUNTS = tuple(
    total for total in Total if not total.seconds and total is not Total.ARRIVED_REQUESTS
)

_HISTOGRAMS = (
    *("time_to_first_token", "inter_token_latency", "duration"),
    *("prompt_tokens", "output_tokens"),
)


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """What an engine did between two of its pages; None where either page lacks a value.

    With `reset` (the engine restarted in between) counts start at the restart, so rates are lower
    bounds. `prefill_seconds` and `decode_seconds` are from the engine's own timers: how long each
    of its devices ran such steps.
    """

    start_ns: int
    end_ns: int
    reset: bool
    computed_tokens: float | None
    external_tokens: float | None
    generation_tokens: float | None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    finished_requests: float | None = None
    steps: float | None = None

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def tokens_advanced(self) -> bool:
        """Whether any token was computed between the pages."""
        rates = (self.computed_tokens_per_second, self.generation_tokens_per_second)
        return any(rate is not None and rate > 0 for rate in rates)

    @property
    def did_work(self) -> bool:
        """Whether any token was computed, or any step or request finished, between the pages."""
        finished = (self.finished_requests, self.steps)
        return self.tokens_advanced or any(count is not None and count > 0 for count in finished)

    @property
    def computed_tokens_per_second(self) -> float | None:
        """The rate of prompt tokens computed here: prefill work."""
        return None if self.computed_tokens is None else self.computed_tokens / self.seconds

    @property
    def generation_tokens_per_second(self) -> float | None:
        """The rate of generated tokens: decode work."""
        return None if self.generation_tokens is None else self.generation_tokens / self.seconds


def window(before: EnginePage, after: EnginePage) -> EngineWindow:
    """Return what happened between two pages of one engine.

    The counts are unknown if data-parallel ranks were added or removed: so were their counts.

    Raises:
        PageError: The pages are of different kinds, or not in order of time.
    """
    if before.kind != after.kind:
        cause = "two pages of different engines"
        raise PageError(f"{cause}: {before.kind} and {after.kind}", cause=cause)
    if after.t_ns <= before.t_ns:
        raise PageError("the second page is not later than the first")
    reset = was_restarted(before, after)
    deltas = (
        # A sum of durations may fall by a negative duration, which is not negative work.
        None
        if old is None or new is None or before.ranks != after.ranks
        else max(new - (0.0 if reset else old), 0.0)
        for old, new in zip(_totals(before), _totals(after), strict=True)
    )
    return EngineWindow(before.t_ns, after.t_ns, reset, *deltas)


def was_restarted(before: EnginePage, after: EnginePage) -> bool:
    """Return whether another process, or another model, wrote the second page.

    One counter that fell means a new process, so all others began at 0 as well. A page with no
    model name, or several, does not identify its model.
    """
    names = {before.model_name, after.model_name} - {None}
    if len(names) > 1:
        return True
    if after.serving is before.serving and _totals(after) == _totals(before):
        return False  # an idle engine, the most frequent case
    pairs = zip(_counts(before), _counts(after), strict=True)
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _totals(page: EnginePage) -> tuple[float | None, ...]:
    """Return what a window counts, in the order of its fields."""
    return (
        page.computed_tokens_total,
        page.external_tokens_total,
        page.generation_tokens_total,
        page.prefill_seconds_total,
        page.decode_seconds_total,
        page.serving.totals.get(Total.FINISHED_REQUESTS),
        page.steps_total,
    )


def _counts(page: EnginePage) -> tuple[float | None, ...]:
    """Return everything that never falls within a process."""
    return (*_totals(page)[:3], *serving_counts(page.serving))


def serving_counts(serving: ServingCounts) -> tuple[float | None, ...]:
    """Return the counts that never fall, in fixed order; None where not reported."""
    histograms = (getattr(serving, name) for name in _HISTOGRAMS)
    return (
        *map(serving.totals.get, _COUNTS),
        *(None if histogram is None else histogram.total for histogram in histograms),
    )


class CumulativeCounts:
    """One engine's counts since its first page."""

    def __init__(self) -> None:
        self._before: EnginePage | None = None
        # Arrivals in a process are derived from gauges too, which may lag.
        self._arrivals = ArrivalPeak()
        self.counts: ServingCounts | None = None

    def ingest(self, page: EnginePage) -> None:
        """Ingest the next valid page; the first one's totals are not counted."""
        before, now = self._before, page.serving
        arrived = now.totals.get(Total.ARRIVED_REQUESTS)
        other = before is not None and (before.kind, before.ranks) != (page.kind, page.ranks)
        anew = self.counts is None or other
        restarted = before is None or was_restarted(before, page)
        if anew or restarted:
            known = (arrived or 0.0) if anew else 0.0
            self._arrivals = ArrivalPeak(known, may_vanish=forgets_aborted(page.kind))
        peak: float | None = None
        if arrived is not None:
            finished = now.totals.get(Total.FINISHED_REQUESTS, 0.0)
            peak = self._arrivals.ingest(page.t_ns, finished, arrived)
        if self.counts is None or other:
            self.counts = counted_on(self.counts or ServingCounts(), now, now)
        elif before is None or restarted:
            self.counts = counted_on(self.counts, ServingCounts(), now)
        elif now is not before.serving:  # unchanged while the engine is idle
            self.counts = counted_on(self.counts, before.serving, now, peak)
            page = replace(page, serving=_with_absent(now, before.serving))
        self._before = page

    def restart(self) -> None:
        """Treat the next page as that of a new process, whose counts began at 0."""
        self._before = None


def _with_absent(now: ServingCounts, before: ServingCounts) -> ServingCounts:
    """Return a page's counts, with those of the previous page for absent series.

    A series that vanishes and returns has not counted its whole total meanwhile.
    """
    if not before.totals.keys() <= now.totals.keys():
        now = replace(now, totals={**before.totals, **now.totals})
    absent = {name: getattr(before, name) for name in _HISTOGRAMS if getattr(now, name) is None}
    return replace(now, **absent) if any(absent.values()) else now


def counted_on(
    counts: ServingCounts,
    old: ServingCounts,
    new: ServingCounts,
    arrived_before: float | None = None,
) -> ServingCounts:
    """Return counts plus what a process has counted between two of its pages.

    `arrived_before` replaces the old page's arrivals, if more are known.
    """
    totals, before = dict(counts.totals), dict(old.totals)
    if arrived_before is not None:
        before[Total.ARRIVED_REQUESTS] = arrived_before
    for total, count in new.totals.items():
        was = before.get(total, 0.0)
        totals[total] = totals.get(total, 0.0) + max(count - was, 0.0)
    return ServingCounts(
        totals,
        *(
            _added(getattr(counts, name), getattr(old, name), getattr(new, name))
            for name in _HISTOGRAMS
        ),
    )


def _added(
    counts: Histogram | None, old: Histogram | None, new: Histogram | None
) -> Histogram | None:
    if new is None:
        return counts
    if counts is not None and old is not None and new.counts == old.counts:
        return counts
    nothing = Histogram(new.bounds, (0.0,) * len(new.counts), 0.0)
    counts, old = counts or nothing, old or nothing
    grown = [max(after - before, 0.0) for before, after in zip(old.counts, new.counts, strict=True)]
    # The new observations must not decrease from bucket to bucket.
    ordered = accumulate(grown, max)
    return Histogram(
        new.bounds,
        tuple(count + more for count, more in zip(counts.counts, ordered, strict=True)),
        counts.sum + max(new.sum - old.sum, 0.0),
    )
