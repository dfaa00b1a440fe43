"""How vLLM writes its page (read from versions 0.32.0 and 0.33.0)."""

from __future__ import annotations

from disagg_exporter.engine_pages.engines.series import Adapter, Field, Series
from disagg_exporter.engine_pages.exposition.lines import Found
from disagg_exporter.model import Total

_BY_SOURCE = ("prompt_tokens_by_source_total",)
_BY_REASON = ("num_requests_waiting_by_reason",)


def _kv_cache_tokens(found: Found) -> float | None:
    """The caches of all ranks together, from the labels of an info series."""
    tokens = 0.0
    for labels, _ in found.get("cache_config_info", ()):
        whole, blocks, size = (
            labels.get(name, "")
            for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
        )
        if whole.isdecimal():
            tokens += float(whole)
        elif blocks.isdecimal() and size.isdecimal():
            tokens += float(blocks) * float(size)
        else:
            return None
    return tokens or None


VLLM = Adapter(
    kind="vllm",
    # A page asked for as OpenMetrics, or passed on by some routers, has the colon renamed; Ray
    # puts its own word before it.
    prefixes=("vllm:", "vllm_", "ray_vllm_"),
    series=(
        Series(Field.RUNNING, ("num_requests_running",)),
        # The plain gauge also counts requests that wait for KV to arrive, which no room helps.
        Series(Field.WAITING, _BY_REASON, "reason", ("capacity",)),
        Series(Field.WAITING, ("num_requests_waiting",)),
        Series(Field.DEFERRED, _BY_REASON, "reason", ("deferred",)),
        Series(Field.KV_USAGE_RATIO, ("kv_cache_usage_perc",)),
        Series(Field.KV_USAGE_RATIO, ("gpu_cache_usage_perc",)),
        # prompt_tokens_total would count transferred tokens on a decode engine: better nothing.
        Series(Field.COMPUTED_TOKENS_TOTAL, _BY_SOURCE, "source", ("local_compute",)),
        Series(Field.EXTERNAL_TOKENS_TOTAL, _BY_SOURCE, "source", ("external_kv_transfer",)),
        Series(Field.GENERATION_TOKENS_TOTAL, ("generation_tokens_total",)),
        # A histogram over steps: its count is what matters here, not how many tokens they had.
        Series(Field.STEPS_TOTAL, ("iteration_tokens_total_count",)),
        Series(Field.AWAKE, ("engine_sleep_state",), "sleep_state", ("awake",)),
        Series(Total.FINISHED_REQUESTS, ("request_success_total",)),
        Series(Total.PREEMPTIONS, ("num_preemptions_total",)),
        Series(Total.QUEUE_SECONDS, ("request_queue_time_seconds_sum",)),
        Series(Total.QUEUE_REQUESTS, ("request_queue_time_seconds_count",)),
        # From the first step to the first token; on a decode engine that is one decode step.
        Series(Total.FIRST_TOKEN_SECONDS, ("request_prefill_time_seconds_sum",)),
        Series(Total.FIRST_TOKEN_REQUESTS, ("request_prefill_time_seconds_count",)),
        # Pulled KV is counted by the engine that pulls, decode; its expiry where it was held.
        Series(
            Total.TRANSFERS, ("nixl_xfer_time_seconds_count", "mooncake_xfer_time_seconds_count")
        ),
        Series(
            Total.TRANSFER_SECONDS, ("nixl_xfer_time_seconds_sum", "mooncake_xfer_time_seconds_sum")
        ),
        Series(
            Total.TRANSFER_BYTES, ("nixl_bytes_transferred_sum", "mooncake_bytes_transferred_sum")
        ),
        Series(
            Total.FAILED_TRANSFERS,
            ("nixl_num_failed_transfers_total", "mooncake_num_failed_transfers_total"),
        ),
        Series(Total.FAILED_NOTIFICATIONS, ("nixl_num_failed_notifications_total",)),
        Series(Total.FAILED_RECEIVES, ("mooncake_num_failed_recvs_total",)),
        Series(
            Total.EXPIRED_TRANSFERS,
            ("nixl_num_kv_expired_reqs_total", "mooncake_num_kv_expired_reqs_total"),
        ),
    ),
    time_to_first_token="time_to_first_token_seconds",
    inter_token_latency="inter_token_latency_seconds",
    kv_cache_tokens=_kv_cache_tokens,
    facts=("cache_config_info",),
)
