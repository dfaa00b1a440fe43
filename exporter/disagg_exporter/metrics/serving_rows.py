"""Rows of what engines report of their requests and KV transfers, and how they were verified."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.engine_pages.adapters import is_known_version
from disagg_exporter.engine_pages.histograms import (
    FIRST_TOKEN_BOUNDS_SECONDS,
    PROMPT_BOUNDS_TOKENS,
)
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import (
    ENDINGS,
    PROMPT_TOKENS,
    REJECTIONS,
    EnginePage,
    EngineStatus,
    KvQueue,
    Method,
    Role,
    ServingCounts,
    Snapshot,
    Total,
)

_SERVES_USERS = (Role.DECODE, Role.MIXED)
_READS_PROMPTS = (Role.PREFILL, Role.MIXED)

_COUNTERS = {
    "disagg_engine_finished_requests_total": Total.FINISHED_REQUESTS,
    "disagg_engine_arrivals_total": Total.ARRIVED_REQUESTS,
    "disagg_engine_preemptions_total": Total.PREEMPTIONS,
    "disagg_engine_kv_transfers_total": Total.TRANSFERS,
    "disagg_engine_kv_transfer_seconds_total": Total.TRANSFER_SECONDS,
    "disagg_engine_kv_transfer_bytes_total": Total.TRANSFER_BYTES,
}
_FAILURES: dict[str, Total] = {
    "transfer": Total.FAILED_TRANSFERS,
    "notification": Total.FAILED_NOTIFICATIONS,
    "receive": Total.FAILED_RECEIVES,
    "bootstrap": Total.FAILED_BOOTSTRAPS,
    "expired": Total.EXPIRED_TRANSFERS,
}
_BY_LABEL: dict[str, Mapping[str, Total]] = {
    "disagg_engine_kv_transfer_failures_total": _FAILURES,
    "disagg_engine_ends_total": ENDINGS,
    "disagg_engine_rejections_total": REJECTIONS,
    "disagg_engine_prompt_tokens_total": PROMPT_TOKENS,
}
_KV_QUEUES = {
    Role.PREFILL: (KvQueue.BOOTSTRAP, KvQueue.INFLIGHT),
    Role.DECODE: (KvQueue.PREALLOC, KvQueue.TRANSFER),
}
# From a request's first step to its first token an engine prefills; one that received the KV takes
# a decode step.
_FIRST_TOKEN = {Role.PREFILL: "prefill", Role.MIXED: "prefill", Role.DECODE: "first_decode"}


def write_latency(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write each engine's request counts, and how it was verified."""
    methods = {account.engine: account.method for account in snapshot.engine_accounts}
    for status in snapshot.engines:
        engine = status.engine
        if status.serving is not None:
            _write_counts(rows, status, status.serving)
        if status.page is not None:
            _write_page(rows, status, status.page)
        if clock := _step_clock(status, methods.get(engine)):
            rows.set("disagg_engine_step_clock_info", 1, engine, clock)


def _step_clock(status: EngineStatus, method: Method | None) -> str | None:
    """Return what the durations of its steps mean; None while its single steps are not used."""
    if method is Method.STEPS:
        return "engine_wait"
    if method is Method.FPM:
        return "cuda_span" if status.kind == "sglang" else "schedule_to_update"
    return None


def _write_page(rows: MetricRows, status: EngineStatus, page: EnginePage) -> None:
    engine, version = status.engine, status.version
    for queue in _KV_QUEUES.get(status.role, ()):
        requests = page.kv_queues.get(queue)
        rows.set("disagg_engine_kv_queue_requests", requests, engine, status.role, queue)
    rows.set("disagg_engine_kv_cache_tokens", page.kv_cache_tokens, engine)
    if page.asleep is not None:
        rows.set("disagg_engine_asleep", float(page.asleep), engine)
    if version:
        rows.set("disagg_engine_version_known", float(is_known_version(page.kind, version)), engine)


def _write_counts(rows: MetricRows, status: EngineStatus, serving: ServingCounts) -> None:
    who = (status.engine, status.role)
    for name, total in _COUNTERS.items():
        rows.set(name, serving.totals.get(total), *who)
    for name, by_label in _BY_LABEL.items():
        for value, total in by_label.items():
            rows.set(name, serving.totals.get(total), *who, value)
    for component, seconds, requests in (
        ("queue", Total.QUEUE_SECONDS, Total.QUEUE_REQUESTS),
        ("kv_transfer", Total.KV_STAGE_SECONDS, Total.KV_STAGE_REQUESTS),
        (_FIRST_TOKEN.get(status.role), Total.FIRST_TOKEN_SECONDS, Total.FIRST_TOKEN_REQUESTS),
    ):
        if component:
            name = "disagg_engine_ttft_component"
            rows.set(f"{name}_seconds_total", serving.totals.get(seconds), *who, component)
            rows.set(f"{name}_requests_total", serving.totals.get(requests), *who, component)
    first, between = serving.time_to_first_token, serving.inter_token_latency
    first = None if first is None else first.at(FIRST_TOKEN_BOUNDS_SECONDS)
    if status.role is Role.PREFILL:
        rows.set_histogram("disagg_engine_prefill_time_to_first_token_seconds", first, *who)
    if status.role in _READS_PROMPTS and serving.prompt_tokens is not None:
        prompts = serving.prompt_tokens.at(PROMPT_BOUNDS_TOKENS)
        rows.set_histogram("disagg_engine_request_prompt_tokens", prompts, *who)
    if status.role in _SERVES_USERS:
        rows.set_histogram("disagg_engine_time_to_first_token_seconds", first, *who)
        rows.set_histogram("disagg_engine_inter_token_latency_seconds", between, *who)
