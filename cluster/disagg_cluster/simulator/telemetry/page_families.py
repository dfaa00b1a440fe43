"""The families of a vLLM metrics page: their names, kinds and labels, and the sources of values.

In the order of vLLM 0.32. What the simulated engine does not model stays 0, as it does on a real
page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disagg_cluster.simulator.engine.batch import SchedulerState
from disagg_cluster.simulator.telemetry.page_counters import HistogramCounter, PageCounters

Value = float | Sequence[float] | HistogramCounter
Read = Callable[[PageCounters, SchedulerState], Value]


@dataclass(frozen=True, slots=True)
class VllmFamily:
    """One family, without the prefix `vllm:`.

    With `label` there is one sample for each of `values`. `connector`: only on the pages of
    engines with a KV connector. `engine` says whether its samples are labelled with the rank.
    """

    name: str
    kind: str
    text: str
    read: Read
    label: str = ""
    values: tuple[str, ...] = ()
    connector: bool = False
    engine: bool = True


def _zero(_: PageCounters, __: SchedulerState) -> float:
    return 0


def _counter(name: str, text: str, read: Read = _zero, **more: object) -> VllmFamily:
    return VllmFamily(name + "_total", "counter", text, read, **more)  # type: ignore[arg-type] # passed through


def _gauge(name: str, text: str, read: Read, **more: object) -> VllmFamily:
    return VllmFamily(name, "gauge", text, read, **more)  # type: ignore[arg-type] # passed through


def _histogram(name: str, text: str, read: Read, **more: object) -> VllmFamily:
    return VllmFamily(name, "histogram", text, read, **more)  # type: ignore[arg-type] # passed through


_NIXL = (
    _histogram("nixl_xfer_time_seconds", "Time of a transfer.", lambda c, _: c.transfer_time),
    _histogram("nixl_post_time_seconds", "Time to post a transfer.", lambda c, _: c.post_time),
    _histogram("nixl_bytes_transferred", "Bytes of a transfer.", lambda c, _: c.transfer_bytes),
    _histogram(
        "nixl_num_descriptors",
        "Descriptors of a transfer.",
        lambda c, _: c.transfer_descriptors,
    ),
    _counter(
        "nixl_num_failed_transfers", "Transfers that failed.", lambda c, _: c.failed_transfers
    ),
    _counter("nixl_num_failed_notifications", "Notifications that failed."),
    _counter(
        "nixl_num_kv_expired_reqs", "Requests nobody fetched.", lambda c, _: c.expired_requests
    ),
    _counter("nixl_num_notifications_after_expiry", "Notifications that came too late."),
)

_STATE = (
    _counter("estimated_flops_per_gpu", "Operations a GPU, estimated."),
    _counter("estimated_read_bytes_per_gpu", "Bytes read by a GPU, estimated."),
    _counter("estimated_write_bytes_per_gpu", "Bytes written by a GPU, estimated."),
    _gauge("num_requests_running", "Requests in the batch.", lambda _, s: s.running),
    _gauge(
        "num_requests_waiting",
        "Requests waiting, for any reason.",
        lambda _, s: s.waiting + s.deferred,
    ),
    _gauge(
        "num_requests_waiting_by_reason",
        "Requests waiting, by reason.",
        lambda _, s: (s.waiting, s.deferred),
        label="reason",
        values=("capacity", "deferred"),
    ),
    _gauge(
        "num_requests_kv_fetch_by_stage",
        "Requests whose KV comes from elsewhere.",
        lambda _, s: (0, s.deferred, 0),
        label="stage",
        values=("waiting_to_start", "in_progress", "completed_waiting"),
        connector=True,
    ),
    _gauge(
        "engine_sleep_state",
        "Which state of sleep the engine is in.",
        lambda _, __: (1, 0, 0),
        label="sleep_state",
        values=("awake", "weights_offloaded", "discard_all"),
    ),
    _gauge("kv_cache_usage_perc", "KV cache in use, 0 to 1.", lambda _, s: s.kv_usage_ratio),
)

_TOKENS = (
    _counter("prefix_cache_queries", "Tokens looked up.", lambda c, _: _prompt_tokens(c)),
    _counter("prefix_cache_hits", "Tokens found.", lambda c, _: c.cached_tokens),
    _counter(
        "external_prefix_cache_queries",
        "Tokens looked up elsewhere.",
        lambda c, _: c.computed_tokens + c.external_tokens,
    ),
    _counter(
        "external_prefix_cache_hits", "Tokens found elsewhere.", lambda c, _: c.external_tokens
    ),
    _counter("mm_cache_queries", "Multi-modal items looked up."),
    _counter("mm_cache_hits", "Multi-modal items found."),
    _counter("num_preemptions", "Preemptions.", lambda c, _: c.preemptions),
    _counter("prompt_tokens", "Prompt tokens, any source.", lambda c, _: _prompt_tokens(c)),
    _counter(
        "prompt_tokens_by_source",
        "Prompt tokens by source.",
        lambda c, _: (c.computed_tokens, c.cached_tokens, c.external_tokens),
        label="source",
        values=("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    _counter(
        "prompt_tokens_cached",
        "Prompt tokens not computed here.",
        lambda c, _: c.cached_tokens + c.external_tokens,
    ),
    _counter(
        "prompt_tokens_cached_by_source",
        "Prompt tokens not computed here, by source.",
        lambda c, _: (c.cached_tokens, 0, c.external_tokens, 0, 0),
        label="source",
        values=("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    _counter("generation_tokens", "Tokens written.", lambda c, _: c.generation_tokens),
)

_REQUESTS = (
    _counter(
        "request_success",
        "Requests ended, by how.",
        lambda c, _: (0, c.finished, c.aborted, 0, 0),
        label="finished_reason",
        values=("stop", "length", "abort", "error", "repetition"),
    ),
    _counter(
        "admission_rejections",
        "Requests refused, by reason.",
        lambda _, __: (0, 0),
        label="reason",
        values=("max_num_queued_reqs", "max_num_queued_tokens"),
        engine=False,
    ),
    _histogram("request_prompt_tokens", "Prompt of a request.", lambda c, _: c.prompt_tokens),
    _histogram("request_generation_tokens", "Tokens it wrote.", lambda c, _: c.output_tokens),
    _histogram("iteration_tokens_total", "Tokens of a step.", lambda c, _: c.step_tokens),
    _histogram(
        "request_max_num_generation_tokens", "Tokens it might write.", lambda c, _: c.output_tokens
    ),
    _histogram("request_params_n", "Its parameter n.", lambda c, _: c.samples_asked),
    _histogram("request_params_max_tokens", "Its max_tokens.", lambda c, _: c.output_tokens),
)

_TIMES = (
    ("time_to_first_token_seconds", lambda c, _: c.time_to_first_token),
    ("inter_token_latency_seconds", lambda c, _: c.inter_token_latency),
    ("request_time_per_output_token_seconds", lambda c, _: c.time_per_output_token),
    ("e2e_request_latency_seconds", lambda c, _: c.whole_time),
    ("request_queue_time_seconds", lambda c, _: c.queue_time),
    ("request_inference_time_seconds", lambda c, _: c.inference_time),
    ("request_prefill_time_seconds", lambda c, _: c.prefill_time),
    ("request_decode_time_seconds", lambda c, _: c.decode_time),
    ("request_num_preemptions", lambda c, _: c.request_preemptions),
    ("request_prefill_kv_computed_tokens", lambda c, _: c.prefill_computed_tokens),
)

FAMILIES: tuple[VllmFamily, ...] = (
    *(replace(family, connector=True) for family in _NIXL),
    *_STATE,
    *_TOKENS,
    *_REQUESTS,
    *(_histogram(name, f"Histogram: {name.replace('_', ' ')}.", read) for name, read in _TIMES),
)


def _prompt_tokens(counters: PageCounters) -> int:
    return counters.computed_tokens + counters.cached_tokens + counters.external_tokens
