"""What a snapshot says of the router, as rows."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.metrics.rows.sheet import Sheet
from disagg_exporter.model import Phase, RouterCounts, RouterPage, RouterStatus, Snapshot

_ERRORS = {
    Phase.PREFILL: "disagg_router_prefill_errors_total",
    Phase.DECODE: "disagg_router_decode_errors_total",
}


def write_router(sheet: Sheet, snapshot: Snapshot) -> None:
    """Write the router's counters and how it stands; nothing on a node without one."""
    router = snapshot.router
    if router is None:
        return
    names = {engine.url: engine.name for engine in router.engines}
    if router.counts is not None:
        _write_counts(sheet, router, router.counts, names)
    if router.page is not None:
        _write_page(sheet, router.page, names)


def _write_counts(
    sheet: Sheet, router: RouterStatus, counts: RouterCounts, names: Mapping[str, str]
) -> None:
    sheet.put("disagg_router_requests_total", counts.requests)
    # A router names an engine only with its first error, which `increase()` could not see.
    for engine in router.engines:
        sheet.add(_ERRORS[engine.phase], 0.0, engine.name)
    for phase, errors in (
        (Phase.PREFILL, counts.prefill_errors),
        (Phase.DECODE, counts.decode_errors),
    ):
        for url, count in errors.items():
            sheet.add(_ERRORS[phase], count, names.get(url, url))


def _write_page(sheet: Sheet, page: RouterPage, names: Mapping[str, str]) -> None:
    for phase, requests in page.active.items():
        sheet.put("disagg_router_active_requests", requests, phase)
    sheet.put("disagg_router_pending_requests", page.pending)
    for url, well in page.worker_health.items():
        sheet.put("disagg_router_worker_health", float(well), names.get(url, url))
