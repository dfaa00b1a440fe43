"""The meaning of the metric series of vLLM, SGLang, TensorRT-LLM and Dynamo."""

from __future__ import annotations

from dataclasses import replace

from disagg_exporter.engine_pages.exposition.lines import SamplesByName
from disagg_exporter.engine_pages.series import Adapter, Field, Series
from disagg_exporter.model import ENDINGS, KvQueue, Total

_BY_SOURCE = ("prompt_tokens_by_source_total",)
_BY_REASON = ("num_requests_waiting_by_reason",)
_BY_STAGE = ("num_requests_kv_fetch_by_stage",)
_ENDED = ("request_success_total",)
_REJECTED = ("admission_rejections_total",)


def _endings(**reasons: str) -> tuple[Series, ...]:
    """Map our end reasons to the engine's; a reason's series may be absent until its first use."""
    return tuple(
        Series(ENDINGS[ours], _ENDED, "finished_reason", tuple(theirs.split()), sparse=True)
        for ours, theirs in reasons.items()
    )


def _vllm_kv_cache_tokens(found: SamplesByName) -> float | None:
    """Return the total cache size of all ranks, from the labels of an info series."""
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


def _by_connector(name: str) -> tuple[str, ...]:
    """Return a series' name for each of the connectors by which vLLM transfers KV."""
    return f"nixl_{name}", f"mooncake_{name}"


# Read from versions 0.32.0 and 0.33.0.
VLLM = Adapter(
    kind="vllm",
    # In OpenMetrics format, and when forwarded by some routers, the colon is replaced; Ray adds
    # its own prefix.
    prefixes=("vllm:", "vllm_", "ray_vllm_"),
    series=(
        Series(Field.RUNNING, ("num_requests_running",)),
        # The plain gauge also counts requests that wait for KV to arrive, not for capacity.
        Series(Field.WAITING, _BY_REASON, "reason", ("capacity",)),
        Series(Field.WAITING, ("num_requests_waiting",)),
        Series(Field.DEFERRED, _BY_REASON, "reason", ("deferred",)),
        # Requests whose KV has arrived only wait for a step.
        Series(KvQueue.TRANSFER, _BY_STAGE, "stage", ("waiting_to_start", "in_progress")),
        Series(Field.KV_USAGE_RATIO, ("kv_cache_usage_perc",)),
        Series(Field.KV_USAGE_RATIO, ("gpu_cache_usage_perc",)),
        # No fallback to prompt_tokens_total: on a decode engine it counts transferred tokens.
        Series(Field.COMPUTED_TOKENS_TOTAL, _BY_SOURCE, "source", ("local_compute",)),
        Series(Field.EXTERNAL_TOKENS_TOTAL, _BY_SOURCE, "source", ("external_kv_transfer",)),
        Series(Field.GENERATION_TOKENS_TOTAL, ("generation_tokens_total",)),
        # A histogram of tokens per step; its count is the number of steps.
        Series(Field.STEPS_TOTAL, ("iteration_tokens_total_count",)),
        Series(Field.AWAKE, ("engine_sleep_state",), "sleep_state", ("awake",)),
        Series(Total.FINISHED_REQUESTS, _ENDED),
        *_endings(stop="stop", length="length", abort="abort", error="error"),
        Series(Total.REJECTED_FOR_REQUESTS, _REJECTED, "reason", ("max_num_queued_reqs",)),
        Series(Total.REJECTED_FOR_TOKENS, _REJECTED, "reason", ("max_num_queued_tokens",)),
        Series(Total.COMPUTED_PROMPT_TOKENS, _BY_SOURCE, "source", ("local_compute",)),
        Series(Total.CACHED_PROMPT_TOKENS, _BY_SOURCE, "source", ("local_cache_hit",)),
        Series(Total.TRANSFERRED_PROMPT_TOKENS, _BY_SOURCE, "source", ("external_kv_transfer",)),
        Series(Total.PREEMPTIONS, ("num_preemptions_total",)),
        Series(Total.QUEUE_SECONDS, ("request_queue_time_seconds_sum",)),
        Series(Total.QUEUE_REQUESTS, ("request_queue_time_seconds_count",)),
        # From the first step to the first token; on a decode engine that is one decode step.
        Series(Total.FIRST_TOKEN_SECONDS, ("request_prefill_time_seconds_sum",)),
        Series(Total.FIRST_TOKEN_REQUESTS, ("request_prefill_time_seconds_count",)),
        # Pulled KV is counted by the pulling (decode) engine, its expiry by the one that held it.
        Series(Total.TRANSFERS, _by_connector("xfer_time_seconds_count")),
        Series(Total.TRANSFER_SECONDS, _by_connector("xfer_time_seconds_sum")),
        Series(Total.TRANSFER_BYTES, _by_connector("bytes_transferred_sum")),
        Series(Total.FAILED_TRANSFERS, _by_connector("num_failed_transfers_total")),
        Series(Total.FAILED_NOTIFICATIONS, ("nixl_num_failed_notifications_total",)),
        Series(Total.FAILED_RECEIVES, ("mooncake_num_failed_recvs_total",)),
        Series(Total.EXPIRED_TRANSFERS, _by_connector("num_kv_expired_reqs_total")),
    ),
    time_to_first_token="time_to_first_token_seconds",
    inter_token_latency="inter_token_latency_seconds",
    duration="e2e_request_latency_seconds",
    prompt_tokens="request_prompt_tokens",
    output_tokens="request_generation_tokens",
    lengths_end_at_longest=True,
    kv_cache_tokens=_vllm_kv_cache_tokens,
    facts=("cache_config_info",),
)


_FORWARD = ("forward_execution_seconds_total",)
_TOKENS = ("realtime_tokens_total",)
_STAGE = "per_stage_req_latency_seconds"
_SENDING = ("prefill_transfer_kv_cache",)

# The second is the older name of the first.
_BOOTSTRAP = ("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs")
_INFLIGHT = ("num_prefill_inflight_queue_reqs",)
_PREALLOC = ("num_decode_prealloc_queue_reqs",)
_TRANSFER = ("num_decode_transfer_queue_reqs",)

_MEBIBYTE = 2.0**20


def _sglang_kv_cache_tokens(found: SamplesByName) -> float | None:
    """Return the total cache size of all data-parallel ranks; ranks of one group share one."""
    by_group = {
        labels.get("dp_rank", ""): value for labels, value in found.get("max_total_num_tokens", ())
    }
    return sum(value for value in by_group.values() if value >= 0) or None


# Read from the source of version 0.5.23.
SGLANG = Adapter(
    kind="sglang",
    prefixes=("sglang:", "sglang_"),
    series=(
        Series(Field.RUNNING, ("num_running_reqs",)),
        # A decode engine's requests first wait for room in its pre-allocation queue.
        Series(Field.WAITING, ("num_queue_reqs", *_PREALLOC)),
        # Waiting for the peer, for KV to be sent, for KV to arrive.
        Series(Field.DEFERRED, (*_BOOTSTRAP, *_INFLIGHT, *_TRANSFER)),
        Series(KvQueue.BOOTSTRAP, _BOOTSTRAP),
        Series(KvQueue.INFLIGHT, _INFLIGHT),
        Series(KvQueue.PREALLOC, _PREALLOC),
        Series(KvQueue.TRANSFER, _TRANSFER),
        Series(Field.KV_USAGE_RATIO, ("token_usage",)),
        # Counted per step; prompt_tokens_total counts at a request's end, and cached tokens too.
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
        Series(Total.COMPUTED_PROMPT_TOKENS, _TOKENS, "mode", ("prefill_compute",), sparse=True),
        Series(Total.CACHED_PROMPT_TOKENS, _TOKENS, "mode", ("prefill_cache",), sparse=True),
        Series(Total.PREEMPTIONS, ("num_retracted_requests_total",)),
        Series(Total.QUEUE_SECONDS, ("queue_time_seconds_sum",)),
        Series(Total.QUEUE_REQUESTS, ("queue_time_seconds_count",)),
        Series(Total.FIRST_TOKEN_SECONDS, (f"{_STAGE}_sum",), "stage", ("prefill_forward",)),
        Series(Total.FIRST_TOKEN_REQUESTS, (f"{_STAGE}_count",), "stage", ("prefill_forward",)),
        Series(Total.KV_STAGE_SECONDS, (f"{_STAGE}_sum",), "stage", _SENDING),
        Series(Total.KV_STAGE_REQUESTS, (f"{_STAGE}_count",), "stage", _SENDING),
        # Histograms since about 0.5.6; earlier gauges of the same name hold only the last transfer
        # and have no sum. The megabytes are 2^20 bytes.
        Series(Total.TRANSFERS, ("kv_transfer_latency_ms_count",)),
        Series(Total.TRANSFER_SECONDS, ("kv_transfer_latency_ms_sum",), scale=1e-3),
        Series(Total.TRANSFER_BYTES, ("kv_transfer_total_mb_sum",), scale=_MEBIBYTE),
        Series(Total.FAILED_TRANSFERS, ("num_transfer_failed_reqs_total",)),
        Series(Total.FAILED_BOOTSTRAPS, ("num_bootstrap_failed_reqs_total",)),
    ),
    time_to_first_token="time_to_first_token_seconds",
    inter_token_latency="inter_token_latency_seconds",
    duration="e2e_request_latency_seconds",
    prompt_tokens="prompt_tokens_histogram",
    output_tokens="generation_tokens_histogram",
    # Every pipeline stage reports the same requests; with --enable-metrics-for-all-schedulers
    # so does every tensor-parallel rank. Data-parallel ranks have separate requests.
    rank_labels=("pp_rank", "tp_rank", "moe_ep_rank"),
    breakdown_label="priority",
    kv_cache_tokens=_sglang_kv_cache_tokens,
    facts=("max_total_num_tokens",),
)


def _trtllm_kv_cache_tokens(found: SamplesByName) -> float | None:
    blocks, size = (
        [value for _, value in found.get(name, ())]
        for name in ("kv_cache_max_blocks", "kv_cache_tokens_per_block")
    )
    return (sum(blocks) * max(size) or None) if blocks and size else None


# Read from its collector at commit 050f80d of 2026. The page is `/prometheus/metrics`; its
# `/metrics` is JSON and drops what it has reported.
TRTLLM = Adapter(
    kind="trtllm",
    prefixes=("trtllm_", "trtllm:"),
    series=(
        Series(Field.RUNNING, ("num_requests_running",)),
        Series(Field.WAITING, ("num_requests_waiting",)),
        Series(Field.KV_USAGE_RATIO, ("kv_cache_utilization",)),
        # prompt_tokens_total is not used: it counts at a request's end, and on a generation server
        # includes transferred tokens.
        Series(Field.GENERATION_TOKENS_TOTAL, ("generation_tokens_total",)),
        Series(Total.FINISHED_REQUESTS, _ENDED),
        *_endings(stop="stop", length="length", abort="cancelled", error="error"),
        Series(Total.QUEUE_SECONDS, ("request_queue_time_seconds_sum",)),
        Series(Total.QUEUE_REQUESTS, ("request_queue_time_seconds_count",)),
        Series(Total.FIRST_TOKEN_SECONDS, ("request_prefill_time_seconds_sum",)),
        Series(Total.FIRST_TOKEN_REQUESTS, ("request_prefill_time_seconds_count",)),
        # Dynamo's TensorRT-LLM worker adds these.
        Series(Total.TRANSFERS, ("kv_transfer_latency_seconds_count",)),
        Series(Total.TRANSFER_SECONDS, ("kv_transfer_latency_seconds_sum",)),
        Series(Total.TRANSFER_BYTES, ("kv_transfer_bytes_sum",)),
    ),
    # Its time per output token is a mean over a whole request, not an inter-token latency.
    time_to_first_token="time_to_first_token_seconds",
    duration="e2e_request_latency_seconds",
    kv_cache_tokens=_trtllm_kv_cache_tokens,
    facts=("kv_cache_max_blocks", "kv_cache_tokens_per_block"),
)

# Older builds have no prefix, so only this label distinguishes their series from other programs'.
TRTLLM_UNPREFIXED = replace(TRTLLM, prefixes=("",), required_label="engine_type")


# Version 1.6.1. If a worker's page also has the engine's own series, it is read as that engine's
# page; a mock prefill worker's has none (ai-dynamo/dynamo#8752). Requests in flight do not measure
# load: where prefill and decode rendezvous, an overloaded prefill fills them on the decode side.
DYNAMO = Adapter(
    kind="dynamo",
    prefixes=("dynamo_component_",),
    series=(
        Series(Total.FINISHED_REQUESTS, ("requests_total",), "dynamo_endpoint", ("generate",)),
    ),
)


ADAPTERS: tuple[Adapter, ...] = (VLLM, SGLANG, TRTLLM, DYNAMO, TRTLLM_UNPREFIXED)

KINDS = tuple(dict.fromkeys(adapter.kind for adapter in ADAPTERS))
"""Our names of these engines."""


def page_path(kind: str) -> str:
    """Return the path of an engine's metrics page on its server.

    TensorRT-LLM's `/metrics` must never be scraped: each scrape removes what others would read.
    """
    return "/prometheus/metrics" if kind == "trtllm" else "/metrics"


def version_path(kind: str) -> str:
    """Return the path where an engine reports its version, in a JSON object under `version`."""
    return "/server_info" if kind == "sglang" else "/version"


def is_asked_at_once(kind: str) -> bool:
    """Return whether routers send a request to such a decode engine and its prefill engine at once.

    Then its times include the user's whole wait. Others get it once the prompt is computed.
    """
    return kind == "sglang"


def forgets_aborted(kind: str) -> bool:
    """Return whether such an engine never counts a request that its user gave up (as of 0.32.0)."""
    return kind == "vllm"


KNOWN_VERSIONS = {
    "vllm": frozenset({"0.32.0", "0.33.0"}),
    "sglang": frozenset({"0.5.23"}),
    "dynamo": frozenset({"1.6.1"}),
}
"""Each has a page in tests/data/<engine>-<version>/, captured, or written from its source.

TensorRT-LLM is absent: its page was read from a commit between two versions.
"""


def is_known_version(kind: str, version: str) -> bool:
    """Return whether our reading of such an engine's page was checked against this version.

    A build suffix does not change the page: 0.32.0+cpu is 0.32.0.
    """
    return version.partition("+")[0] in KNOWN_VERSIONS.get(kind, ())
