"""The pools of each model: their fill levels and the verdict on them."""

from __future__ import annotations

from collections import defaultdict

from disagg_cluster.top.readings.values import LiveReading, PoolKey
from disagg_cluster.top.view.values import LivePoolRow, ModelRow
from disagg_exporter.model import Role
from disagg_exporter.model.pool_verdict import LEAST_KNOWN_RATIO, pool_verdicts

_ORDER = {Role.PREFILL.value: 0, Role.DECODE.value: 1, Role.MIXED.value: 2}


def models_of(reading: LiveReading) -> tuple[ModelRow, ...]:
    """Each model with a serving pool."""
    used = {pool.key: _used_ratio(reading, pool.key) for pool in reading.pools}
    pools: dict[tuple[str, str, str], dict[str, PoolKey]] = defaultdict(dict)
    for key in (*used, *reading.pool_gpus):
        if key.role in _ORDER:
            pools[key.cluster, key.model_name, key.namespace][key.role] = key
    rows = []
    for (cluster, model_name, namespace), by_role in sorted(pools.items()):
        keys = sorted(by_role.values(), key=lambda key: _ORDER[key.role])
        known = {Role(key.role): used.get(key) for key in keys}
        verdicts = pool_verdicts(
            {role: ratio for role, ratio in known.items() if ratio is not None}
        )
        pool_rows = tuple(
            LivePoolRow(key.role, reading.pool_gpus.get(key), used.get(key)) for key in keys
        )
        # A daemon or a cluster's rules observe for minutes and know recent tokens as well;
        # dashboards show their verdict, so it is preferred.
        watched = reading.verdicts.get((cluster, model_name, namespace))
        words = watched or verdicts
        rows.append(ModelRow(cluster, model_name, namespace, words, pool_rows))
    return tuple(rows)


def _used_ratio(reading: LiveReading, key: PoolKey) -> float | None:
    pool = next(each for each in reading.pools if each.key == key)
    gpus = reading.pool_gpus.get(key)
    if pool.known_gpus <= 0 or (gpus and pool.known_gpus < LEAST_KNOWN_RATIO * gpus):
        return None
    return pool.used_gpus / pool.known_gpus
