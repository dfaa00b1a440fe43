"""Selects the engine of a pool whose move costs least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_exporter.model import Role
from disagg_exporter.model.counted import counted

_NAMED_NODES = 3

WorkerId = tuple[str, str]
"""Node of a worker, and its name there."""


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """One serving engine: where it runs, its kind, and how busy it is.

    `supervised`: a disagg-node daemon started it and can change its role. `requests` are running
    or waiting on it; `capacity_used` is 1 when it is full. Either is None if not reported.
    `is_seen`: its node shows it now; else all of this was so minutes ago.
    """

    node: str
    worker: str
    kind: CostKey
    supervised: bool = False
    requests: float | None = None
    capacity_used: float | None = None
    is_seen: bool = True

    @property
    def id(self) -> WorkerId:
        """What identifies it in the cluster."""
        return self.node, self.worker


def cheapest(
    workers: Iterable[PoolWorker], role: Role, left_out: Set[WorkerId] = frozenset()
) -> PoolWorker | None:
    """The worker of a role to move, None if there is none; supervised ones are preferred.

    Among those, the one with the fewest requests: a drain waits for them, and their cache is lost.
    Workers that do not report requests come last, those in `left_out` are not considered.
    """
    return min(
        (each for each in workers if each.kind.role is role and each.id not in left_out),
        key=lambda each: (
            not each.supervised,
            math.inf if each.requests is None else each.requests,
            each.node,
            each.worker,
        ),
        default=None,
    )


def unseen_words(workers: Iterable[PoolWorker]) -> str:
    """Which of them are on nodes that are not seen now; empty if none is."""
    unseen = [each for each in workers if not each.is_seen]
    if not unseen:
        return ""
    nodes = sorted({each.node for each in unseen})
    named = ", ".join(nodes[:_NAMED_NODES]) + ", ..." * (len(nodes) > _NAMED_NODES)
    return f"{counted(len(unseen), 'engine')} on {named}, not seen for some minutes"


def pool_capacity_used(workers: Iterable[PoolWorker]) -> dict[Role, float]:
    """Mean use of each pool, by GPUs; only roles where at least half of the GPUs report it."""
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
