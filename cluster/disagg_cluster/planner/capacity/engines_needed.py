"""The fewest engines that serve a load within the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from disagg_cluster.planner.capacity.decode_pool import decode_pool
from disagg_cluster.planner.capacity.engine_costs import (
    EngineCosts,
    StretchedCosts,
    UnseenStepError,
)
from disagg_cluster.planner.capacity.mixed_pool import mixed_pool
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    EngineNeed,
    EnginePool,
    UndecidedCapacity,
    check_pool,
)
from disagg_cluster.planner.capacity.prefill_pool import prefill_pool
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_exporter.model import Role

_DEVIATIONS = 1.645
_MOST_ENGINES = 1 << 16
_LEAST_FACTOR = 0.2


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


def engines_needed(
    role: Role,
    costs: EngineCosts,
    mix: RequestMix,
    targets: Targets,
    transfer_seconds: float = 0.0,
) -> EngineNeed | UndecidedCapacity:
    """The fewest engines of a role that serve all of `mix` within the targets.

    Undecided if no number is enough (one request alone misses its target), or if step times are
    not known.

    Raises:
        ValueError: The role is none of prefill, decode and mixed, or the transfer time is negative.
    """
    check_pool(1, transfer_seconds)

    def fewest(factor: float) -> tuple[int, Bound] | UndecidedCapacity:
        scale = max(factor, _LEAST_FACTOR)
        scaled = StretchedCosts(costs, prefill_factor=scale, decode_factor=scale)
        try:
            pool = engine_pool(role, scaled, mix, targets, transfer_seconds)
            return _fewest(pool, mix.requests_per_second)
        except UnseenStepError as error:
            return UndecidedCapacity(str(error))

    found = fewest(1.0)
    if isinstance(found, UndecidedCapacity):
        return found
    off = _DEVIATIONS * costs.relative_error
    low, high = fewest(1 - off), fewest(1 + off)
    engines, bound = found
    return EngineNeed(
        engines,
        engines if isinstance(low, UndecidedCapacity) else min(low[0], engines),
        None if isinstance(high, UndecidedCapacity) else max(high[0], engines),
        bound,
    )


def _fewest(pool: EnginePool, load: float) -> tuple[int, Bound] | UndecidedCapacity:
    """The number, and the limit that one engine fewer would exceed (for one engine, its first)."""
    one = pool.capacity(1)
    if load == 0:
        return 0, one.bound
    if not one.requests_per_second > load / _MOST_ENGINES:
        return UndecidedCapacity(
            f"{_MOST_ENGINES} engines are not enough: one takes {one.requests_per_second:.3g} "
            f"requests/s within the targets, bound by {one.bound}"
        )
    # An engine in a larger pool has no less capacity, so this many are enough.
    low, high = 0, math.ceil(load / one.requests_per_second)
    bound = one.bound
    while high - low > 1:
        middle = (low + high) // 2
        found = pool.capacity(middle)
        if found.requests_per_second >= load:
            high = middle
        else:
            low, bound = middle, found.bound
    return high, bound
