"""The series that a reading uses, and access to them by label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from disagg_cluster.top.readings.values import PoolKey
from disagg_exporter.engine_pages.exposition.lines import Sample
from disagg_exporter.model import Histogram

Series = Mapping[str, Sequence[Sample]]
"""Samples by name, from one node's page or a Prometheus."""

OF_NODES = (
    "disagg_build_info",
    "disagg_simulated_info",
    "disagg_gpu_info",
    "disagg_gpu_assignment_info",
    "disagg_gpu_phase_seconds_total",
    "disagg_gpu_unobserved_seconds_total",
    "disagg_gpu_watermark_timestamp_seconds",
    "disagg_gpu_start_timestamp_seconds",
    "disagg_gpu_memory_used_bytes",
    "disagg_gpu_memory_total_bytes",
    "disagg_gpu_power_watts",
    "disagg_engine_info",
    "disagg_engine_up",
    "disagg_engine_registered",
    "disagg_engine_follower_info",
    "disagg_engine_requests",
    "disagg_engine_kv_cache_usage_ratio",
    "disagg_engine_capacity_used_ratio",
    "disagg_engine_bound_info",
    "disagg_engine_phase_tokens_total",
    "disagg_engine_time_to_first_token_seconds_bucket",
    "disagg_engine_prefill_time_to_first_token_seconds_bucket",
    "disagg_engine_inter_token_latency_seconds_bucket",
    "disagg_attribution_info",
    "disagg_node_role_gpus",
    "disagg_node_capacity_used_gpus",
    "disagg_node_capacity_known_gpus",
    "disagg_request_time_to_first_token_seconds_bucket",
    "disagg_request_arrivals_total",
    "disagg_worker_state",
    "disagg_worker_restarts_total",
    "disagg_worker_paused",
    "disagg_worker_drained",
    "disagg_worker_start_timestamp_seconds",
    "disagg_worker_next_start_timestamp_seconds",
    "disagg_collector_success",
)
"""Series of a node's page; any may be absent."""

OF_PLANNER = (
    "disagg_plan_gpus",
    "disagg_rebalance_advised_info",
    "disagg_bottleneck",
    "disagg_bottleneck_action_info",
    "disagg_bottleneck_ttft_cost_seconds",
)
"""Series of a planner's page, available only from a Prometheus."""

RECORDED_VERDICT = "cluster_model_namespace:disagg_fullest_pool:ratio"
"""The verdict on each model's pools, where our rules are loaded."""

ALERTS = "ALERTS"
"""Firing alerts, as recorded by Prometheus."""

Labels = Mapping[str, str]


def node_of(labels: Labels) -> str:
    """The node of a series, from the scrape's label or address; empty on a node's own page."""
    return labels.get("node") or labels.get("instance", "")


def owned(series: Series, name: str, label: str) -> Iterator[tuple[tuple[str, str], Sample]]:
    """The samples of a name, each with its owner: (node, value of the label)."""
    for sample in series.get(name, ()):
        yield (node_of(sample.labels), sample.labels.get(label, "")), sample


def values(series: Series, name: str, label: str) -> dict[tuple[str, str], float]:
    """Values of a family with one sample per owner."""
    return {key: sample.value for key, sample in owned(series, name, label)}


def labels_by(series: Series, name: str, label: str) -> dict[tuple[str, str], Labels]:
    """Labels of an info family with one sample per owner."""
    return {key: sample.labels for key, sample in owned(series, name, label)}


def pool_key(labels: Labels) -> PoolKey:
    """The pool of a series with these labels."""
    model, namespace = labels.get("model_name", ""), labels.get("engine_namespace", "")
    return PoolKey(labels.get("cluster", ""), model, namespace, labels.get("role", ""))


def buckets(samples: Sequence[Sample]) -> Histogram | None:
    """The sum of histograms by bucket, with an unknown sum of values; None without any."""
    sums: dict[float, float] = {}
    for sample in samples:
        try:
            bound = float(sample.labels.get("le", "nan"))
        except ValueError:
            continue
        if bound == bound:
            sums[bound] = sums.get(bound, 0.0) + sample.value
    if not sums:
        return None
    bounds = tuple(sorted(bound for bound in sums if not math.isinf(bound)))
    finite = tuple(sums[bound] for bound in bounds)
    return Histogram(bounds, (*finite, sums.get(math.inf, max(finite, default=0.0))), math.nan)
