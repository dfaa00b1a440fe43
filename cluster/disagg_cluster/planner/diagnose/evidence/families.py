"""Which families of the page a diagnosis reads: whoever fills a `SeriesWindow` needs no other."""

from __future__ import annotations

# What there is, and on what.
_FACTS = (
    "disagg_engine_info",
    "disagg_gpu_assignment_info",
    "disagg_gpu_info",
    "disagg_engine_up",
    "disagg_engine_start_timestamp_seconds",
    "disagg_engine_asleep",
    "disagg_engine_kv_cache_tokens",
    "disagg_engine_max_num_batched_tokens",
    "disagg_engine_max_num_seqs",
    "disagg_engine_prefill_knee_tokens",
    "disagg_engine_prefill_knee_tokens_per_second",
    "disagg_engine_decode_target_batch",
)
# What engines did, and what their own slow-moving model says it should have taken.
_WORK = (
    "disagg_engine_steps_total",
    "disagg_engine_step_seconds_total",
    "disagg_engine_expected_step_seconds_total",
    "disagg_engine_foreseen_step_seconds_total",
    "disagg_engine_phase_tokens_total",
    "disagg_engine_prompt_tokens_total",
    "disagg_engine_capacity_used_ratio",
    "disagg_engine_interference_seconds_total",
    "disagg_engine_interference_step_seconds_total",
)
# What their requests met.
_REQUESTS = (
    "disagg_engine_requests",
    "disagg_engine_kv_cache_usage_ratio",
    "disagg_engine_arrivals_total",
    "disagg_engine_finished_requests_total",
    "disagg_engine_rejections_total",
    "disagg_engine_preemptions_total",
    "disagg_engine_ttft_component_seconds_total",
    "disagg_engine_ttft_component_requests_total",
    "disagg_engine_request_prompt_tokens_bucket",
    "disagg_engine_request_prompt_tokens_sum",
    "disagg_engine_request_prompt_tokens_count",
    "disagg_engine_kv_transfers_total",
    "disagg_engine_kv_transfer_seconds_total",
    "disagg_engine_kv_transfer_bytes_total",
    "disagg_engine_kv_transfer_failures_total",
    "disagg_request_time_to_first_token_seconds_bucket",
    "disagg_request_time_to_first_token_seconds_sum",
    "disagg_request_time_to_first_token_seconds_count",
    "disagg_request_output_tokens_sum",
    "disagg_request_output_tokens_count",
    "disagg_request_arrivals_total",
    "disagg_router_active_requests",
    "disagg_router_pending_requests",
)
# What their GPUs say.
_GPUS = (
    "disagg_gpu_sm_clock_hertz",
    "disagg_gpu_power_limit_watts",
    "disagg_gpu_temperature_celsius",
    "disagg_gpu_throttle_seconds_total",
    "disagg_gpu_ecc_errors_total",
    "disagg_gpu_xid_errors_total",
    "disagg_gpu_activity_seconds_total",
    "disagg_gpu_idle_seconds_total",
    "disagg_gpu_unattributed_seconds_total",
    "disagg_gpu_memory_used_bytes",
    "disagg_gpu_memory_total_bytes",
    "disagg_gpu_foreign_sm_ratio",
)

FAMILIES: tuple[str, ...] = _FACTS + _WORK + _REQUESTS + _GPUS
