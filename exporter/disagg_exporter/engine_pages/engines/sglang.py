"""How SGLang writes its page (read from the source of version 0.5.23)."""

from __future__ import annotations

from disagg_exporter.engine_pages.engines.series import Adapter, Field, Series
from disagg_exporter.engine_pages.exposition.lines import Found
from disagg_exporter.model import Total

_FORWARD = ("forward_execution_seconds_total",)
_TOKENS = ("realtime_tokens_total",)
_STAGE = "per_stage_req_latency_seconds"
_SENDING = ("prefill_transfer_kv_cache",)

_MEBIBYTE = 2.0**20


def _kv_cache_tokens(found: Found) -> float | None:
    """The caches of all data-parallel ranks together; ranks of one group share one."""
    by_group = {
        labels.get("dp_rank", ""): value for labels, value in found.get("max_total_num_tokens", ())
    }
    return sum(value for value in by_group.values() if value >= 0) or None


SGLANG = Adapter(
    kind="sglang",
    prefixes=("sglang:", "sglang_"),
    series=(
        Series(Field.RUNNING, ("num_running_reqs",)),
        # A decode engine's requests wait for room in its pre-allocation queue first.
        Series(Field.WAITING, ("num_queue_reqs", "num_decode_prealloc_queue_reqs")),
        # For the peer, for KV to leave, for KV to arrive. The second is an older name of the first.
        Series(
            Field.DEFERRED,
            (
                "num_prefill_bootstrap_queue_reqs",
                "num_prefill_prealloc_queue_reqs",
                "num_prefill_inflight_queue_reqs",
                "num_decode_transfer_queue_reqs",
            ),
        ),
        Series(Field.KV_USAGE_RATIO, ("token_usage",)),
        # Counted step by step; prompt_tokens_total counts at a request's end, cached ones too.
        Series(Field.COMPUTED_TOKENS_TOTAL, _TOKENS, "mode", ("prefill_compute",), sparse=True),
        Series(Field.GENERATION_TOKENS_TOTAL, _TOKENS, "mode", ("decode",), sparse=True),
        Series(Field.GENERATION_TOKENS_TOTAL, ("generation_tokens_total",)),
        # Mixed batches are counted as extend.
        Series(
            Field.PREFILL_SECONDS_TOTAL,
            _FORWARD,
            "category",
            ("extend", "mixed", "split_prefill"),
            sparse=True,
        ),
        Series(
            Field.DECODE_SECONDS_TOTAL,
            _FORWARD,
            "category",
            ("decode", "target_verify"),
            sparse=True,
        ),
        Series(Total.FINISHED_REQUESTS, ("num_requests_total",)),
        Series(Total.PREEMPTIONS, ("num_retracted_requests_total",)),
        Series(Total.QUEUE_SECONDS, ("queue_time_seconds_sum",)),
        Series(Total.QUEUE_REQUESTS, ("queue_time_seconds_count",)),
        Series(Total.FIRST_TOKEN_SECONDS, (f"{_STAGE}_sum",), "stage", ("prefill_forward",)),
        Series(Total.FIRST_TOKEN_REQUESTS, (f"{_STAGE}_count",), "stage", ("prefill_forward",)),
        Series(Total.KV_STAGE_SECONDS, (f"{_STAGE}_sum",), "stage", _SENDING),
        Series(Total.KV_STAGE_REQUESTS, (f"{_STAGE}_count",), "stage", _SENDING),
        # Histograms since 0.5.6 or so; the gauges of the same name before it are the last transfer
        # only, and have no sum. The megabytes are 2^20 bytes.
        Series(Total.TRANSFERS, ("kv_transfer_latency_ms_count",)),
        Series(Total.TRANSFER_SECONDS, ("kv_transfer_latency_ms_sum",), scale=1e-3),
        Series(Total.TRANSFER_BYTES, ("kv_transfer_total_mb_sum",), scale=_MEBIBYTE),
        Series(Total.FAILED_TRANSFERS, ("num_transfer_failed_reqs_total",)),
        Series(Total.FAILED_BOOTSTRAPS, ("num_bootstrap_failed_reqs_total",)),
    ),
    time_to_first_token="time_to_first_token_seconds",
    inter_token_latency="inter_token_latency_seconds",
    # Every pipeline stage tells of the same requests; with --enable-metrics-for-all-schedulers
    # every tensor-parallel rank does. Data-parallel ranks have requests of their own.
    rank_labels=("pp_rank", "tp_rank", "moe_ep_rank"),
    breakdown_label="priority",
    kv_cache_tokens=_kv_cache_tokens,
    facts=("max_total_num_tokens",),
)
