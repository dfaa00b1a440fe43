"""Which engine of a pool is to be moved: the one whose move costs least."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """One engine that serves: where, of which kind, and how busy.

    `supervised`: a daemon of ours started it, and can give it another role. `requests` run on it
    or wait there; `capacity_used` is 1 where it is full. Either is None where nobody tells.
    """

    node: str
    worker: str
    kind: CostKey
    supervised: bool = False
    requests: float | None = None
    capacity_used: float | None = None


def cheapest(workers: Iterable[PoolWorker], role: Role) -> PoolWorker | None:
    """The worker of a role to move; one that we may move before any other.

    Then the one with the fewest requests: these are what a drain waits for, and whose cache is
    lost. Of one about which nothing is told any number may run. None if there is none.
    """
    return min(
        (each for each in workers if each.kind.role is role),
        key=lambda each: (
            not each.supervised,
            math.inf if each.requests is None else each.requests,
            each.node,
            each.worker,
        ),
        default=None,
    )


def pool_capacity_used(workers: Iterable[PoolWorker]) -> dict[Role, float]:
    """How full pools are, by role: a mean by GPUs; of a role that tells it of one half or more."""
    found: dict[Role, float] = {}
    by_role: dict[Role, list[PoolWorker]] = {}
    for each in workers:
        by_role.setdefault(each.kind.role, []).append(each)
    for role, pool in by_role.items():
        known = [
            (each.capacity_used, each.kind.gpus) for each in pool if each.capacity_used is not None
        ]
        gpus = sum(of for _, of in known)
        if known and 2 * gpus >= sum(each.kind.gpus for each in pool):
            found[role] = sum(used * of for used, of in known) / gpus
    return found
