"""The node's pools of each model: how full they are, and the verdict on them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from disagg_exporter.landing.served import ModelName
from disagg_exporter.model import EngineState, Role, Snapshot
from disagg_exporter.model.pool_verdict import LEAST_KNOWN_RATIO, pool_verdicts

_POOLS = (Role.PREFILL, Role.DECODE, Role.MIXED)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """The engines of one role: number, GPUs, and how full; None while that is not learned.

    A GPU that engines share is divided by their number, as in the metrics of capacity.
    """

    role: Role
    engines: int
    gpus: float
    used_ratio: float | None


@dataclass(frozen=True, slots=True)
class ModelPools:
    """The pools of one model, and the verdicts on them."""

    model_name: str
    namespace: str
    verdicts: tuple[str, ...]
    pools: tuple[PoolRow, ...]


def model_pools(snapshot: Snapshot, late: Collection[ModelName] = ()) -> tuple[ModelPools, ...]:
    """Return the pools of each model served here; `late` are the models with late tokens."""
    used = {each.engine: each.used_ratio for each in snapshot.capacities}
    weights = {device.gpu: device.weight for device in snapshot.devices}
    present = [engine for engine in snapshot.engines if engine.state is not EngineState.GONE]
    sharers = Counter(gpu for engine in present for gpu in engine.devices)
    serving: dict[ModelName, dict[Role, list[tuple[float, float | None]]]] = {}
    for engine in present:
        if engine.role not in _POOLS:
            continue
        gpus = sum(weights.get(gpu, 0.0) / sharers[gpu] for gpu in engine.devices) or 1.0
        pools = serving.setdefault(ModelName(engine.model_name, engine.namespace), {})
        pools.setdefault(engine.role, []).append((gpus, used.get(engine.engine)))
    return tuple(
        _model(model, pools, tokens_late=model in late) for model, pools in sorted(serving.items())
    )


def _model(
    model: ModelName, pools: dict[Role, list[tuple[float, float | None]]], *, tokens_late: bool
) -> ModelPools:
    rows = tuple(
        PoolRow(role, len(pools[role]), sum(gpus for gpus, _ in pools[role]), _used(pools[role]))
        for role in _POOLS
        if role in pools
    )
    known = {row.role: row.used_ratio for row in rows if row.used_ratio is not None}
    verdicts = pool_verdicts(known, tokens_late=tokens_late)
    return ModelPools(*model, verdicts, rows)


def _used(engines: list[tuple[float, float | None]]) -> float | None:
    """Return the used ratio weighted by GPUs; None while it is known for less than half of them."""
    known = [(gpus, used) for gpus, used in engines if used is not None]
    known_gpus = sum(gpus for gpus, _ in known)
    if not known or known_gpus < LEAST_KNOWN_RATIO * sum(gpus for gpus, _ in engines):
        return None
    return sum(gpus * used for gpus, used in known) / known_gpus
