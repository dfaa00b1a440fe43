"""What numbers of engines bring: minutes over target, GPU-hours that idle, money."""

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
    """Over all futures of one model, its roles taken together.

    A future is over target in a block where some role has too few engines for it.

    Args:
        roles: Of each role the pools, and the engines of each of them by block.
        block_hours: How long a block is.
        price: Of a GPU of this name an hour.
    """
    short: NDArray[np.bool_] | None = None
    idle = held = money = 0.0
    known = True
    for pools, counts in roles:
        served = sum(of / np.maximum(pool.needs, 1) for pool, of in zip(pools, counts, strict=True))
        lacking = (np.asarray(served) < 1 - 1e-9) & (pools[0].needs > 0)
        short = lacking if short is None else short | lacking
        spare = np.clip(1 - 1 / np.maximum(np.asarray(served), 1e-12), 0.0, 1.0)
        spare = np.where(pools[0].needs > 0, spare, 1.0).mean(axis=0)
        for pool, of in zip(pools, counts, strict=True):
            hours = of * pool.option.gpus * block_hours
            held += float(hours.sum())
            idle += float((hours * spare).sum())
            each = price(pool.option.gpu_name)
            known = known and (each is not None or not of.any())
            money += float(hours.sum()) * (each or 0.0)
    minutes = 0.0 if short is None else float(short.mean(axis=0).sum()) * block_hours * 60
    return ExpectedCost(minutes, idle, held, money if known else None)
