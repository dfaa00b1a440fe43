"""What a snapshot says of engines' requests, as rows."""

from __future__ import annotations

from disagg_exporter.engine_pages.versions import is_known
from disagg_exporter.metrics.rows.sheet import Sheet
from disagg_exporter.model import (
    EnginePage,
    EngineStatus,
    Method,
    Role,
    ServingCounts,
    Snapshot,
    Total,
)

_SERVES_USERS = (Role.DECODE, Role.MIXED)

_COUNTERS = {
    "disagg_engine_finished_requests_total": Total.FINISHED_REQUESTS,
    "disagg_engine_preemptions_total": Total.PREEMPTIONS,
    "disagg_engine_kv_transfers_total": Total.TRANSFERS,
    "disagg_engine_kv_transfer_seconds_total": Total.TRANSFER_SECONDS,
    "disagg_engine_kv_transfer_bytes_total": Total.TRANSFER_BYTES,
}
_FAILURES = {
    "transfer": Total.FAILED_TRANSFERS,
    "notification": Total.FAILED_NOTIFICATIONS,
    "receive": Total.FAILED_RECEIVES,
    "bootstrap": Total.FAILED_BOOTSTRAPS,
    "expired": Total.EXPIRED_TRANSFERS,
}
# From a request's first step to its first token an engine prefills; one that was given the KV
# takes a decode step.
_FIRST_TOKEN = {
    Role.PREFILL: "prefill",
    Role.MIXED: "prefill",
    Role.DECODE: "first_decode",
}


def write_latency(sheet: Sheet, snapshot: Snapshot) -> None:
    """Write what each engine counts of its requests, and what it is known by."""
    methods = {account.engine: account.method for account in snapshot.engine_accounts}
    for status in snapshot.engines:
        engine = status.engine
        if status.serving is not None:
            _write_counts(sheet, status, status.serving)
        if status.page is not None:
            _write_page(sheet, engine, status.page, status.version)
        if clock := _step_clock(status, methods.get(engine)):
            sheet.put("disagg_engine_step_clock_info", 1, engine, clock)


def _step_clock(status: EngineStatus, method: Method | None) -> str | None:
    """What the lengths of its steps mean; None while its single steps are not used."""
    if method is Method.STEPS:
        return "engine_wait"
    if method is Method.FPM:
        return "cuda_span" if status.kind == "sglang" else "schedule_to_update"
    return None


def _write_page(sheet: Sheet, engine: str, page: EnginePage, version: str) -> None:
    sheet.put("disagg_engine_kv_cache_tokens", page.kv_cache_tokens, engine)
    if page.asleep is not None:
        sheet.put("disagg_engine_asleep", float(page.asleep), engine)
    if version:
        sheet.put("disagg_engine_version_known", float(is_known(page.kind, version)), engine)


def _write_counts(sheet: Sheet, status: EngineStatus, serving: ServingCounts) -> None:
    who = (status.engine, status.role)
    for name, total in _COUNTERS.items():
        sheet.put(name, serving.totals.get(total), *who)
    for reason, total in _FAILURES.items():
        count = serving.totals.get(total)
        sheet.put("disagg_engine_kv_transfer_failures_total", count, *who, reason)
    _write_component(sheet, who, "queue", serving, Total.QUEUE_SECONDS, Total.QUEUE_REQUESTS)
    _write_component(
        sheet, who, "kv_transfer", serving, Total.KV_STAGE_SECONDS, Total.KV_STAGE_REQUESTS
    )
    if component := _FIRST_TOKEN.get(status.role):
        totals = (Total.FIRST_TOKEN_SECONDS, Total.FIRST_TOKEN_REQUESTS)
        _write_component(sheet, who, component, serving, *totals)
    if status.role in _SERVES_USERS:
        first, between = serving.time_to_first_token, serving.inter_token_latency
        sheet.show("disagg_engine_time_to_first_token_seconds", first, *who)
        sheet.show("disagg_engine_inter_token_latency_seconds", between, *who)


def _write_component(
    sheet: Sheet,
    who: tuple[str, str],
    component: str,
    serving: ServingCounts,
    seconds: Total,
    requests: Total,
) -> None:
    name = "disagg_engine_ttft_component"
    sheet.put(f"{name}_seconds_total", serving.totals.get(seconds), *who, component)
    sheet.put(f"{name}_requests_total", serving.totals.get(requests), *who, component)
