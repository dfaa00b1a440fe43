"""The fewest engines on which the targets hold under a load."""

from __future__ import annotations

import math
from collections.abc import Callable

from disagg_cluster.planner.capacity.decode_pool import decode_capacity
from disagg_cluster.planner.capacity.engine_costs import EngineCosts, ScaledCosts
from disagg_cluster.planner.capacity.mixed_pool import mixed_capacity
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    EngineNeed,
    PoolCapacity,
    UndecidedCapacity,
)
from disagg_cluster.planner.capacity.prefill_pool import prefill_capacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_exporter.model import Role

_DEVIATIONS = 1.645
_MOST_ENGINES = 1 << 16
_LEAST_FACTOR = 0.2

_Capacity = Callable[[int], PoolCapacity | UndecidedCapacity]


def engines_needed(
    role: Role,
    costs: EngineCosts,
    mix: RequestMix,
    targets: Targets,
    transfer_seconds: float = 0.0,
) -> EngineNeed | UndecidedCapacity:
    """The fewest engines of a role on which the targets hold for all of `mix`.

    Undecided where no number is enough (one request alone misses its target), or what their steps
    take is not known.

    Raises:
        ValueError: The role is none of prefill, decode and mixed, or a negative transfer.
    """

    def capacity(factor: float) -> _Capacity:
        scaled = ScaledCosts(costs, max(factor, _LEAST_FACTOR))
        match role:
            case Role.PREFILL:
                return lambda engines: prefill_capacity(
                    scaled, mix, targets, engines, transfer_seconds
                )
            case Role.DECODE:
                return lambda engines: decode_capacity(scaled, mix, targets, engines)
            case Role.MIXED:
                return lambda engines: mixed_capacity(scaled, mix, targets, engines)
        raise ValueError(f"engines of role {role} serve no requests")

    load = mix.requests_per_second
    found = _fewest(capacity(1.0), load)
    if isinstance(found, UndecidedCapacity):
        return found
    off = _DEVIATIONS * costs.relative_error
    low, high = (_fewest(capacity(1 + sign * off), load) for sign in (-1, 1))
    engines, bound = found
    return EngineNeed(
        engines,
        engines if isinstance(low, UndecidedCapacity) else min(low[0], engines),
        None if isinstance(high, UndecidedCapacity) else max(high[0], engines),
        bound,
    )


def _fewest(capacity: _Capacity, load: float) -> tuple[int, Bound] | UndecidedCapacity:
    """The number, and what one engine less would break; of one engine, what breaks first."""
    one = capacity(1)
    if isinstance(one, UndecidedCapacity):
        return one
    if load == 0:
        return 0, one.bound
    if not one.requests_per_second > load / _MOST_ENGINES:
        return UndecidedCapacity(
            f"{_MOST_ENGINES} engines are not enough: one takes {one.requests_per_second:.3g} "
            f"requests/s within the targets, bound by {one.bound}"
        )
    # An engine of a larger pool takes no less, so this many are enough.
    low, high = 0, math.ceil(load / one.requests_per_second)
    bound = one.bound
    while high - low > 1:
        middle = (low + high) // 2
        there = capacity(middle)
        if isinstance(there, PoolCapacity) and there.requests_per_second >= load:
            high = middle
        else:
            low = middle
            bound = there.bound if isinstance(there, PoolCapacity) else bound
    return high, bound
