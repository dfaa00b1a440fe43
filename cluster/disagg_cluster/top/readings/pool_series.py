"""Reads the pools of engines: their GPUs, and how much of those is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from disagg_cluster.top.readings.series import Series, labels_by, owned, pool_key
from disagg_cluster.top.readings.values import PoolKey, PoolReading


def pools(series: Series) -> Iterator[PoolReading]:
    """How full each pool is, over the engines whose capacity is known."""
    sums: dict[str, dict[PoolKey, float]] = {}
    for what in ("used", "known"):
        found: dict[PoolKey, float] = defaultdict(float)
        for sample in series.get(f"disagg_node_capacity_{what}_gpus", ()):
            found[pool_key(sample.labels)] += sample.value
        sums[what] = found
    for key, known_gpus in sorted(sums["known"].items(), key=str):
        yield PoolReading(key, sums["used"].get(key, 0.0), known_gpus)


def pool_gpus(series: Series) -> Mapping[PoolKey, float]:
    """GPUs of each pool's engines, as `disagg_node_capacity_known_gpus` counts them."""
    models = labels_by(series, "disagg_engine_info", "engine")
    engines: dict[tuple[str, str], dict[str, PoolKey]] = defaultdict(dict)
    for key, sample in owned(series, "disagg_gpu_assignment_info", "engine"):
        labels = sample.labels
        engines[key[0], labels.get("gpu", "")][key[1]] = PoolKey(
            labels.get("cluster", ""),
            models.get(key, {}).get("model_name", ""),
            labels.get("engine_namespace", ""),
            labels.get("role", ""),
        )
    weights = _weights(series)
    found: dict[PoolKey, float] = defaultdict(float)
    for device, sharers in engines.items():
        for pool in sharers.values():
            found[pool] += weights.get(device, 1.0) / len(sharers)
    return found


def _weights(series: Series) -> Mapping[tuple[str, str], float]:
    """How much of a GPU each device is: those of one name on a node are alike."""
    gpus: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for (node, gpu_name), sample in owned(series, "disagg_node_role_gpus", "gpu_name"):
        gpus[node, gpu_name][sample.labels.get("role", "")] = sample.value
    devices: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for key, labels in labels_by(series, "disagg_gpu_info", "gpu").items():
        devices[key[0], labels.get("gpu_name", "")].append(key)
    return {
        device: whole / len(alike)
        for kind, alike in devices.items()
        if (whole := sum(gpus.get(kind, {}).values())) > 0
        for device in alike
    }
