"""Rows of users' requests, by model."""

from __future__ import annotations

from disagg_exporter.engine_pages.histograms import (
    DURATION_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
    PART_BOUNDS_SECONDS,
)
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import RequestAccount, Snapshot


def write_requests(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write what is known of requests; nothing that no source reports."""
    known = snapshot.requests
    rows.set("disagg_left_out_models", known.left_out_models)
    for account in known.requests:
        _write_account(rows, account)
    for part in known.parts:
        seconds, owner = (
            part.seconds.at(PART_BOUNDS_SECONDS),
            (part.model_name, part.engine_namespace),
        )
        rows.set_histogram("disagg_request_part_seconds", seconds, part.part, *owner)
    for prompts in known.prompt_tokens:
        owner = (prompts.model_name, prompts.engine_namespace)
        name = "disagg_node_prompt_tokens_total"
        rows.set(name, prompts.tokens, prompts.role, prompts.origin, *owner)


def _write_account(rows: MetricRows, account: RequestAccount) -> None:
    who = (account.source, account.model_name, account.engine_namespace)
    first, duration = account.time_to_first_token, account.duration
    if first is not None:
        name = "disagg_request_time_to_first_token_seconds"
        rows.set_histogram(name, first.at(FIRST_TOKEN_BOUNDS_SECONDS), *who)
    if duration is not None:
        at = duration.at(DURATION_BOUNDS_SECONDS)
        rows.set_histogram("disagg_request_duration_seconds", at, *who)
    rows.set_histogram("disagg_request_prompt_tokens", account.prompt_tokens, *who)
    rows.set_histogram("disagg_request_output_tokens", account.output_tokens, *who)
    rows.set("disagg_request_arrivals_total", account.arrivals, *who)
    rows.set("disagg_request_waiting_requests", account.waiting, *who)
    for (role, reason), count in account.rejections.items():
        rows.set("disagg_request_rejections_total", count, role or "", reason, *who)
    for reason, count in account.ends.items():
        rows.set("disagg_request_ends_total", count, reason, *who)
