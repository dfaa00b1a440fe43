"""Expected cost of numbers of engines: minutes over target, idle GPU-hours, money."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.plan.gpu_plan import ExpectedCost
from disagg_cluster.planner.plan.role_pool import RolePool
from disagg_cluster.planner.plan.worker_option import Counts


def expected_cost(
    roles: Sequence[tuple[Sequence[RolePool], Sequence[Counts]]],
    block_hours: float,
    price: Callable[[str], float | None],
) -> ExpectedCost:
    """Mean over all futures of one model, for all its roles together.

    A future is over target in a block where some role has too few engines for it.

    Args:
        roles: The pools of each role, and the engines of each pool by block.
        block_hours: How long a block is.
        price: Price of a GPU of this name per hour.
    """
    short: NDArray[np.bool_] | None = None
    idle = held = money = 0.0
    known = True
    for pools, counts in roles:
        served = sum(
            engines / np.maximum(pool.needs, 1) for pool, engines in zip(pools, counts, strict=True)
        )
        lacking = (np.asarray(served) < 1 - 1e-9) & (pools[0].needs > 0)
        short = lacking if short is None else short | lacking
        spare = np.clip(1 - 1 / np.maximum(np.asarray(served), 1e-12), 0.0, 1.0)
        spare = np.where(pools[0].needs > 0, spare, 1.0).mean(axis=0)
        for pool, engines in zip(pools, counts, strict=True):
            hours = engines * pool.option.gpus * block_hours
            held += float(hours.sum())
            idle += float((hours * spare).sum())
            each = price(pool.option.gpu_name)
            known = known and (each is not None or not engines.any())
            money += float(hours.sum()) * (each or 0.0)
    minutes = 0.0 if short is None else float(short.mean(axis=0).sum()) * block_hours * 60
    return ExpectedCost(minutes, idle, held, money if known else None)
