"""The series behind each observation of an engine or a GPU: a family and values of a label."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Reading(Enum):
    """How a series is read: the increase of a counter, or the value of a gauge."""

    GAIN = auto()
    LEVEL = auto()


class Feature(NamedTuple):
    """One observation: the series of `family` whose `label` has one of `values`, summed."""

    name: str
    family: str
    reading: Reading
    label: str = ""
    values: tuple[str, ...] = ()


def _counter(name: str, family: str, label: str = "", *values: str) -> Feature:
    return Feature(name, f"{family}_total", Reading.GAIN, label, values)


def _gauge(name: str, family: str, label: str = "", *values: str) -> Feature:
    return Feature(name, family, Reading.LEVEL, label, values)


def _waits(name: str, family: str) -> tuple[Feature, Feature]:
    return (
        Feature(f"{name}_seconds", f"{family}_sum", Reading.GAIN),
        Feature(f"{name}_count", f"{family}_count", Reading.GAIN),
    )


_COMPONENT = "disagg_engine_ttft_component"
_TRANSFER = "disagg_engine_kv_transfer"

WAIT_FEATURES: tuple[Feature, ...] = (
    *_waits("entry", "disagg_engine_prefill_time_to_first_token_seconds"),
    *_waits("first", "disagg_engine_time_to_first_token_seconds"),
)

ENGINE_FEATURES: tuple[Feature, ...] = (
    _counter("context_steps", "disagg_engine_steps", "kind", "context"),
    _counter("mixed_steps", "disagg_engine_steps", "kind", "mixed"),
    _counter("generation_steps", "disagg_engine_steps", "kind", "generation"),
    _counter("context_seconds", "disagg_engine_step_seconds", "kind", "context"),
    _counter("mixed_seconds", "disagg_engine_step_seconds", "kind", "mixed"),
    _counter("generation_seconds", "disagg_engine_step_seconds", "kind", "generation"),
    _counter("expected_mixed_seconds", "disagg_engine_expected_step_seconds", "kind", "mixed"),
    _counter("compared_mixed_seconds", "disagg_engine_compared_step_seconds", "kind", "mixed"),
    _counter(
        "expected_pure_seconds",
        "disagg_engine_expected_step_seconds",
        "kind",
        "context",
        "generation",
    ),
    _counter(
        "compared_pure_seconds",
        "disagg_engine_compared_step_seconds",
        "kind",
        "context",
        "generation",
    ),
    _counter("prefill_tokens", "disagg_engine_phase_tokens", "phase", "prefill"),
    _counter("decode_tokens", "disagg_engine_phase_tokens", "phase", "decode"),
    _counter("computed_tokens", "disagg_engine_prompt_tokens", "origin", "computed"),
    _counter("cached_tokens", "disagg_engine_prompt_tokens", "origin", "cached"),
    _counter("transferred_tokens", "disagg_engine_prompt_tokens", "origin", "transferred"),
    _counter("loss_seconds", "disagg_engine_interference_seconds", "effect", "loss"),
    _counter("gain_seconds", "disagg_engine_interference_seconds", "effect", "gain"),
    _counter("mixing_seconds", "disagg_engine_interference_step_seconds"),
    _counter("arrivals", "disagg_engine_arrivals"),
    _counter("finished", "disagg_engine_finished_requests"),
    _counter("rejections", "disagg_engine_rejections"),
    _counter("preemptions", "disagg_engine_preemptions"),
    _counter("queue_seconds", f"{_COMPONENT}_seconds", "component", "queue"),
    _counter("queue_count", f"{_COMPONENT}_requests", "component", "queue"),
    _counter("prefill_seconds", f"{_COMPONENT}_seconds", "component", "prefill"),
    _counter("prefill_count", f"{_COMPONENT}_requests", "component", "prefill"),
    _counter("stage_seconds", f"{_COMPONENT}_seconds", "component", "kv_transfer"),
    _counter("stage_count", f"{_COMPONENT}_requests", "component", "kv_transfer"),
    *WAIT_FEATURES,
    *_waits("between", "disagg_engine_inter_token_latency_seconds"),
    _counter("transfers", f"{_TRANSFER}s"),
    _counter("transfer_seconds", f"{_TRANSFER}_seconds"),
    _counter("transfer_bytes", f"{_TRANSFER}_bytes"),
    _counter("transfer_failures", f"{_TRANSFER}_failures"),
    _gauge("running", "disagg_engine_requests", "state", "running"),
    _gauge("waiting", "disagg_engine_requests", "state", "waiting"),
    _gauge("deferred", "disagg_engine_requests", "state", "deferred"),
    _gauge("preallocating", "disagg_engine_kv_queue_requests", "queue", "prealloc"),
    _gauge("kv_usage", "disagg_engine_kv_cache_usage_ratio"),
    _gauge("capacity_used", "disagg_engine_capacity_used_ratio"),
    _gauge("up", "disagg_engine_up"),
    _gauge("asleep", "disagg_engine_asleep"),
    _gauge("started", "disagg_engine_start_timestamp_seconds"),
    _gauge("kv_tokens", "disagg_engine_kv_cache_tokens"),
    _gauge("step_limit_tokens", "disagg_engine_max_num_batched_tokens"),
    _gauge("batch_limit", "disagg_engine_max_num_seqs"),
    _gauge("knee_tokens", "disagg_engine_prefill_knee_tokens"),
    _gauge("knee_rate", "disagg_engine_prefill_knee_tokens_per_second"),
    _gauge("target_batch", "disagg_engine_decode_target_batch"),
)

GPU_FEATURES: tuple[Feature, ...] = (
    _gauge("clock_hertz", "disagg_gpu_sm_clock_hertz"),
    _gauge("power_limit_watts", "disagg_gpu_power_limit_watts"),
    _gauge("celsius", "disagg_gpu_temperature_celsius", "sensor", "gpu"),
    _gauge("memory_used_bytes", "disagg_gpu_memory_used_bytes"),
    _gauge("foreign_sm", "disagg_gpu_foreign_sm_ratio"),
    _counter("capped_seconds", "disagg_gpu_throttle_seconds", "reason", "power_cap"),
    _counter(
        "throttled_seconds", "disagg_gpu_throttle_seconds", "reason", "thermal", "hw_slowdown"
    ),
    _counter("memory_errors", "disagg_gpu_ecc_errors", "kind", "uncorrected", "corrected"),
    _counter("xid_errors", "disagg_gpu_xid_errors"),
    _counter("sm_seconds", "disagg_gpu_activity_seconds", "unit", "sm"),
    _counter("graphics_seconds", "disagg_gpu_activity_seconds", "unit", "graphics"),
    _counter("gap_seconds", "disagg_gpu_idle_seconds", "reason", "host_gap"),
    _counter("starting_seconds", "disagg_gpu_idle_seconds", "reason", "starting"),
    _counter("stranger_seconds", "disagg_gpu_unattributed_seconds", "reason", "stranger"),
)
