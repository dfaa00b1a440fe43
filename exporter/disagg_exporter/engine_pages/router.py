"""Parses a router's metrics page, and counts on from page to page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import (
    PageError,
    SamplesByName,
    SeriesFilter,
    check_whole,
    find,
    no_count,
)
from disagg_exporter.engine_pages.series import LARGEST
from disagg_exporter.model import Phase, RouterCounts, RouterPage

_OURS = b"vllm_router_"
_REQUESTS = "vllm_router_pd_requests_total"
_ERRORS = {
    Phase.PREFILL: "vllm_router_pd_prefill_errors_total",
    Phase.DECODE: "vllm_router_pd_decode_errors_total",
}
_ACTIVE = {
    Phase.PREFILL: "vllm_router_pd_prefill_occupancy",
    Phase.DECODE: "vllm_router_pd_active_decode_requests",
}
_PENDING = "vllm_router_pd_pending_decode_requests"
_HEALTH = "vllm_router_worker_health"
_COUNTERS = (_REQUESTS, *_ERRORS.values())
_WANTED = SeriesFilter((*_COUNTERS, *_ACTIVE.values(), _PENDING, _HEALTH))


def parse_router_page(text: bytes, t_ns: int, keys: SeriesKeys | None = None) -> RouterPage:
    """Read the page of vllm-router; it is empty before the router's first request.

    Args:
        text: The page.
        t_ns: When it was requested.
        keys: Series keys of this router's earlier pages.

    Raises:
        PageError: The page is not of vllm-router, is cut off, has an invalid line among those we
            need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text:
        check_whole(text)
    if text.strip() and _OURS not in text:
        raise PageError("no series of vllm-router on the page")
    found = find(text, _WANTED, keys or SeriesKeys(), "router's")
    for name in _COUNTERS:
        for sample in found.get(name, ()):
            if not 0 <= sample.value <= LARGEST:
                raise no_count(name, sample.value)
    return RouterPage(
        t_ns=t_ns,
        totals=RouterCounts(
            requests=math.fsum(sample.value for sample in found.get(_REQUESTS, ())),
            errors={
                (phase, url): count
                for phase, name in _ERRORS.items()
                for url, count in _by_engine(found, name).items()
            },
        ),
        active={
            phase: math.fsum(by_engine.values())
            for phase, name in _ACTIVE.items()
            if (by_engine := _by_engine(found, name))
        },
        pending=_sum(_by_engine(found, _PENDING)),
        pending_by_engine=_by_engine(found, _PENDING),
        worker_health={url: value > 0 for url, value in _by_engine(found, _HEALTH).items()},
    )


def count_on(
    counts: RouterCounts | None, before: RouterPage | None, after: RouterPage
) -> RouterCounts:
    """Continue counting with a new page, across restarts of the router.

    Args:
        counts: The counts so far; None at the first page, whose totals are not counted.
        before: The previous page; None if the router has restarted since.
        after: The new page.
    """
    if counts is None:
        return RouterCounts()
    new = after.totals
    old = before.totals if before is not None else RouterCounts()
    # One counter that fell means a new process, so the others began at 0 as well.
    fell = any(new.errors.get(key, 0.0) < count for key, count in old.errors.items())
    if fell or new.requests < old.requests:
        old = RouterCounts()
    errors = {
        key: counts.errors.get(key, 0.0) + new.errors.get(key, 0.0) - old.errors.get(key, 0.0)
        for key in {**counts.errors, **new.errors}
    }
    return RouterCounts(counts.requests + new.requests - old.requests, errors)


def _by_engine(found: SamplesByName, name: str) -> dict[str, float]:
    """Return a series' values by engine: the router's own sum over ranks, else ours."""
    rows = [row for row in found.get(name, ()) if 0 <= row.value <= LARGEST]
    summed = {s.labels.get("worker", "") for s in rows if s.labels.get("rank") == "aggregate"}
    values: dict[str, float] = {}
    for row in rows:
        url = row.labels.get("worker", "")
        if url not in summed or row.labels.get("rank") == "aggregate":
            values[url] = values.get(url, 0.0) + row.value
    return values


def _sum(by_engine: Mapping[str, float]) -> float | None:
    return math.fsum(by_engine.values()) if by_engine else None
