"""Builds a reading from series, of a node's page or of several nodes in a Prometheus."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from disagg_cluster.top.readings.planner_series import advised, bottlenecks, plans
from disagg_cluster.top.readings.pool_series import pool_gpus, pools
from disagg_cluster.top.readings.series import (
    ALERTS,
    RECORDED_VERDICT,
    Labels,
    Series,
    buckets,
    labels_by,
    node_of,
    owned,
    pool_key,
    values,
)
from disagg_cluster.top.readings.users_requests import arrivals, users_first_token
from disagg_cluster.top.readings.values import (
    EngineReading,
    FiringAlert,
    GpuReading,
    LiveReading,
    WorkerReading,
)
from disagg_exporter.engine_pages.exposition.lines import Sample
from disagg_exporter.model import Histogram

_PARTS = re.compile(r"[0-9]+|[^0-9]+")
_USES = ("disagg_gpu_phase_seconds_total", "disagg_gpu_unobserved_seconds_total")
_OF_EACH_NODE = ("disagg_build_info", "disagg_gpu_info", "disagg_engine_info")
_NOT_ABOUT = {"alertname", "alertstate", "severity", "__name__", "job", "instance", "prometheus"}


def reading_of(series: Series, at_seconds: float) -> LiveReading:
    """A reading of the series of one moment; values that are no finite numbers are unknown.

    Args:
        series: Samples by name; a name may be missing.
        at_seconds: Unix time of the samples.
    """
    series = {
        name: [sample for sample in samples if math.isfinite(sample.value)]
        for name, samples in series.items()
    }
    shared = _shared_names(series)
    named = {
        name: [_named(sample, shared) for sample in samples] for name, samples in series.items()
    }
    gpus, engines = tuple(_gpus(named)), tuple(_engines(named))
    builds = [sample.labels for sample in named.get("disagg_build_info", ())]
    nodes = {gpu.node for gpu in gpus} | {engine.node for engine in engines}
    # A planner reports a version too, but is not a node.
    nodes = nodes or set(map(node_of, builds))
    return LiveReading(
        at_seconds=at_seconds,
        version=", ".join(sorted({labels.get("version", "") for labels in builds})),
        simulated=bool(named.get("disagg_simulated_info")),
        nodes=tuple(sorted(nodes)),
        gpus=gpus,
        engines=engines,
        workers=tuple(_workers(named)),
        pools=tuple(pools(named)),
        pool_gpus=pool_gpus(named),
        verdicts=_verdicts(series),
        failed_collectors=tuple(
            sorted(
                key
                for key, sample in owned(named, "disagg_collector_success", "collector")
                if sample.value == 0
            )
        ),
        alerts=tuple(_alerts(series)),
        plans=plans(series),
        advised=advised(series),
        bottlenecks=bottlenecks(series),
        users_first_token=users_first_token(named),
        arrivals=arrivals(named),
    )


def _shared_names(series: Series) -> Collection[str]:
    """Names that nodes of several clusters have."""
    clusters: dict[str, set[str]] = defaultdict(set)
    for name in _OF_EACH_NODE:
        for sample in series.get(name, ()):
            clusters[node_of(sample.labels)].add(sample.labels.get("cluster", ""))
    return {node for node, found in clusters.items() if len(found) > 1}


def _named(sample: Sample, shared: Collection[str]) -> Sample:
    name, cluster = node_of(sample.labels), sample.labels.get("cluster", "")
    if not name or name not in shared or not cluster:
        return sample
    return Sample({**sample.labels, "node": f"{cluster}/{name}"}, sample.value)


def _gpus(series: Series) -> Iterator[GpuReading]:
    seconds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name in _USES:
        for key, sample in owned(series, name, "gpu"):
            use = sample.labels.get("phase", "unobserved")
            seconds[key][use] = seconds[key].get(use, 0.0) + sample.value
    assigned: dict[tuple[str, str], list[Labels]] = defaultdict(list)
    for key, sample in owned(series, "disagg_gpu_assignment_info", "gpu"):
        assigned[key].append(sample.labels)
    single = {
        name: values(series, f"disagg_gpu_{name}", "gpu")
        for name in (
            "watermark_timestamp_seconds",
            "start_timestamp_seconds",
            "memory_used_bytes",
            "memory_total_bytes",
            "power_watts",
        )
    }
    found = labels_by(series, "disagg_gpu_info", "gpu")
    for key, labels in sorted(found.items(), key=lambda each: _place(*each)):
        roles = {each.get("role", "") for each in assigned.get(key, ())}
        yield GpuReading(
            node=key[0],
            gpu=key[1],
            index=labels.get("index", ""),
            gpu_name=labels.get("gpu_name", ""),
            role=roles.pop() if len(roles) == 1 else ("mixed" if roles else "none"),
            engines=tuple(sorted(each.get("engine", "") for each in assigned.get(key, ()))),
            seconds=seconds.get(key, {}),
            watermark=single["watermark_timestamp_seconds"].get(key),
            start=single["start_timestamp_seconds"].get(key),
            memory_used_bytes=single["memory_used_bytes"].get(key),
            memory_total_bytes=single["memory_total_bytes"].get(key),
            power_watts=single["power_watts"].get(key),
        )


def _place(key: tuple[str, str], labels: Labels) -> tuple[str, int, str, str]:
    """Sort key in the node's own numbering."""
    index = labels.get("index", "")
    return key[0], int(index) if index.isdecimal() else 1 << 30, index, key[1]


def _engines(series: Series) -> Iterator[EngineReading]:
    up = values(series, "disagg_engine_up", "engine")
    registered = values(series, "disagg_engine_registered", "engine")
    leaders = labels_by(series, "disagg_engine_follower_info", "engine")
    kv_used = values(series, "disagg_engine_kv_cache_usage_ratio", "engine")
    used = values(series, "disagg_engine_capacity_used_ratio", "engine")
    bounds = labels_by(series, "disagg_engine_bound_info", "engine")
    how = labels_by(series, "disagg_attribution_info", "engine")
    requests = _by_label(series, "disagg_engine_requests", "state")
    tokens = _by_label(series, "disagg_engine_phase_tokens_total", "phase")
    gpus: dict[tuple[str, str], list[Labels]] = defaultdict(list)
    for key, sample in owned(series, "disagg_gpu_assignment_info", "engine"):
        gpus[key].append(sample.labels)
    first = _histograms(series, "disagg_engine_time_to_first_token_seconds_bucket")
    only = _histograms(series, "disagg_engine_prefill_time_to_first_token_seconds_bucket")
    between = _histograms(series, "disagg_engine_inter_token_latency_seconds_bucket")
    found = labels_by(series, "disagg_engine_info", "engine")
    for key, labels in sorted(found.items(), key=lambda each: _in_order(each[0])):
        rows = gpus.get(key, [])
        states = requests.get(key, {})
        yield EngineReading(
            node=key[0],
            engine=key[1],
            role=labels.get("role", ""),
            model_name=labels.get("model_name", ""),
            namespace=next((row.get("engine_namespace", "") for row in rows), ""),
            kind=labels.get("kind", ""),
            version=labels.get("version", ""),
            up=up[key] > 0 if key in up else None,
            registered=registered[key] > 0 if key in registered else None,
            follows=leaders[key].get("leader", "") if key in leaders else None,
            gpus=tuple(row.get("gpu", "") for row in rows),
            running=states.get("running"),
            waiting=states.get("waiting"),
            deferred=states.get("deferred"),
            kv_used_ratio=kv_used.get(key),
            used_ratio=used.get(key),
            bound=bounds.get(key, {}).get("bound", ""),
            method=how.get(key, {}).get("method", ""),
            confidence=how.get(key, {}).get("confidence", ""),
            tokens=tokens.get(key, {}),
            # After a role change an engine has both; the single token of a prefill is not sent to
            # users.
            first_token=(only if labels.get("role") == "prefill" else first).get(key),
            between_tokens=between.get(key),
        )


def _in_order(key: tuple[str, str]) -> tuple[list[tuple[bool, str]], ...]:
    """Natural sort order: engine 2 before engine 10."""
    parts = (_PARTS.findall(name) for name in key)
    return tuple([(not each.isdecimal(), each.zfill(20)) for each in name] for name in parts)


def _by_label(series: Series, name: str, label: str) -> dict[tuple[str, str], dict[str, float]]:
    """An engine's values by another label, summed over the remaining ones."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for key, sample in owned(series, name, "engine"):
        each = sample.labels.get(label, "")
        found[key][each] = found[key].get(each, 0.0) + sample.value
    return dict(found)


def _histograms(series: Series, name: str) -> dict[tuple[str, str], Histogram]:
    samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for key, sample in owned(series, name, "engine"):
        samples[key].append(sample)
    summed = {key: buckets(each) for key, each in samples.items()}
    return {key: each for key, each in summed.items() if each is not None}


def _workers(series: Series) -> Iterator[WorkerReading]:
    restarts = values(series, "disagg_worker_restarts_total", "worker")
    paused = values(series, "disagg_worker_paused", "worker")
    drained = values(series, "disagg_worker_drained", "worker")
    start = values(series, "disagg_worker_start_timestamp_seconds", "worker")
    following = values(series, "disagg_worker_next_start_timestamp_seconds", "worker")
    for key, sample in owned(series, "disagg_worker_state", "worker"):
        if sample.value > 0:
            yield WorkerReading(
                *key,
                state=sample.labels.get("state", ""),
                restarts=round(restarts.get(key, 0.0)),
                paused=paused.get(key, 0.0) > 0,
                drained=drained.get(key, 0.0) > 0,
                start_timestamp=start.get(key),
                next_start_timestamp=following.get(key),
            )


def _verdicts(series: Series) -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    words: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for sample in series.get(RECORDED_VERDICT, ()):
        key = pool_key(sample.labels)
        words[key.cluster, key.model_name, key.namespace].append(sample.labels.get("verdict", ""))
    # Verdicts on mixed engines come last, as on a node's own page.
    return {key: tuple(sorted(each, key=lambda w: "mixed" in w)) for key, each in words.items()}


def _alerts(series: Series) -> Iterator[FiringAlert]:
    for sample in series.get(ALERTS, ()):
        labels = sample.labels
        if labels.get("alertstate") == "firing":
            about = [
                f"{key} {value}" for key, value in sorted(labels.items()) if _identifies(key, value)
            ]
            yield FiringAlert(
                labels.get("alertname", ""), labels.get("severity", ""), ", ".join(about)
            )


def _identifies(key: str, value: str) -> bool:
    return key not in _NOT_ABOUT and bool(value)
