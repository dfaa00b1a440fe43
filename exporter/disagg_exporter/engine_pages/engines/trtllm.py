"""How TensorRT-LLM writes its page (read from its collector at commit 050f80d of 2026).

The page is `/prometheus/metrics`. Its `/metrics` is JSON and forgets what it has told.
"""

from __future__ import annotations

from dataclasses import replace

from disagg_exporter.engine_pages.engines.series import Adapter, Field, Series
from disagg_exporter.engine_pages.exposition.lines import Found
from disagg_exporter.model import Total


def _kv_cache_tokens(found: Found) -> float | None:
    blocks, size = (
        [value for _, value in found.get(name, ())]
        for name in ("kv_cache_max_blocks", "kv_cache_tokens_per_block")
    )
    return (sum(blocks) * max(size) or None) if blocks and size else None


TRTLLM = Adapter(
    kind="trtllm",
    prefixes=("trtllm_", "trtllm:"),
    series=(
        Series(Field.RUNNING, ("num_requests_running",)),
        Series(Field.WAITING, ("num_requests_waiting",)),
        Series(Field.KV_USAGE_RATIO, ("kv_cache_utilization",)),
        # prompt_tokens_total counts at a request's end, and on a generation server the transferred
        # ones too: better nothing.
        Series(Field.GENERATION_TOKENS_TOTAL, ("generation_tokens_total",)),
        Series(Total.FINISHED_REQUESTS, ("request_success_total",)),
        Series(Total.QUEUE_SECONDS, ("request_queue_time_seconds_sum",)),
        Series(Total.QUEUE_REQUESTS, ("request_queue_time_seconds_count",)),
        Series(Total.FIRST_TOKEN_SECONDS, ("request_prefill_time_seconds_sum",)),
        Series(Total.FIRST_TOKEN_REQUESTS, ("request_prefill_time_seconds_count",)),
        # Dynamo's TensorRT-LLM worker adds these.
        Series(Total.TRANSFERS, ("kv_transfer_latency_seconds_count",)),
        Series(Total.TRANSFER_SECONDS, ("kv_transfer_latency_seconds_sum",)),
        Series(Total.TRANSFER_BYTES, ("kv_transfer_bytes_sum",)),
    ),
    # It has time per output token, which is a mean over a whole request and no gap between two.
    time_to_first_token="time_to_first_token_seconds",
    kv_cache_tokens=_kv_cache_tokens,
    facts=("kv_cache_max_blocks", "kv_cache_tokens_per_block"),
)

# Older builds put nothing before their names, which are then anybody's but for this label.
TRTLLM_UNPREFIXED = replace(TRTLLM, prefixes=("",), required_label="engine_type")
