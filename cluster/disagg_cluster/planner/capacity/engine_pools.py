"""The pool of engines of a role."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from disagg_cluster.planner.capacity.decode_pool import decode_pool
from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.mixed_pool import mixed_pool
from disagg_cluster.planner.capacity.pool_capacity import EnginePool
from disagg_cluster.planner.capacity.prefill_pool import prefill_pool
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_exporter.model import Role

_POOLS: Mapping[Role, Callable[[EngineCosts, RequestMix, Targets, float], EnginePool]] = {
    Role.PREFILL: prefill_pool,
    Role.DECODE: lambda costs, mix, targets, _transfer: decode_pool(costs, mix, targets),
    Role.MIXED: lambda costs, mix, targets, _transfer: mixed_pool(costs, mix, targets),
}


def engine_pool(
    role: Role, costs: EngineCosts, mix: RequestMix, targets: Targets, transfer_seconds: float
) -> EnginePool:
    """The pool of a role; only prefill engines need the time of a KV transfer.

    Raises:
        ValueError: The role is none of prefill, decode and mixed, or the transfer time is negative.
        UnseenStepError: Step times are not known even for one request.
    """
    if role not in _POOLS:
        raise ValueError(f"engines of role {role} serve no requests")
    return _POOLS[role](costs, mix, targets, transfer_seconds)
