"""How many engines to have in each coming block, at the least cost of all sequences.

Costs arise from engines held, from load for which they are too few, and from moves. Dynamic
programming over the blocks, backwards. Costs are in engine-hours, so no prices are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.plan.worker_option import Counts

# How many sizes of a pool are evaluated at most.
_MOST_SIZES = 1000


@dataclass(frozen=True, slots=True)
class PlanTiming:
    """How long changes take.

    `lead_seconds` from the order of an engine until it serves; `drain_seconds` from its release
    until its GPUs are free. An engine is released only if it will not be needed for `hold_seconds`.
    """

    lead_seconds: float
    drain_seconds: float = 60.0
    hold_seconds: float = 1800.0

    @property
    def start_hours(self) -> float:
        """Engine-hours that a start costs."""
        return self.lead_seconds / 3600

    @property
    def drain_hours(self) -> float:
        """Engine-hours that a release costs."""
        return self.drain_seconds / 3600


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """Cost of too few engines over that of too many.

    An engine missing for an hour costs `short_weight` times what an idle one does. The cheapest
    number is therefore the quantile `short_weight` / (1 + `short_weight`) of what will be needed
    (the newsvendor's, Arrow, Harris and Marschak 1951), and that is what counts as needed. No
    engine is released that would be needed if load were greater by `release_margin`.
    """

    short_weight: float = 9.0
    release_margin: float = 0.1

    @property
    def quantile(self) -> float:
        """The share of futures to provide for."""
        return self.short_weight / (1 + self.short_weight)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleProblem:
    """One pool, block by block.

    `needs` are the engines needed in each `[future, block]`; at least `least` are held in each
    block, and `keep` are not released. The pool has `present` engines, and cannot have more before
    the block `reachable`.
    """

    needs: Counts
    least: Counts
    keep: Counts
    present: int
    reachable: int
    block_hours: float
    hold_blocks: int


def cheapest_schedule(problem: ScheduleProblem, timing: PlanTiming, costs: PlanCosts) -> Counts:
    """Engines in each block: at least `least` once reachable, and never more than is of use.

    More load never makes them fewer: the costs of holding and missing are convex, moves cost by
    the engine, and the objective is submodular (Topkis 1998).
    """
    sizes = _sizes(problem)
    stage = _stage_hours(problem, sizes, costs)
    blocks = len(problem.least)
    to_go = np.zeros((blocks + 1, len(sizes)))
    for block in range(blocks - 1, -1, -1):
        to_go[block] = _least_cost(
            to_go[block + 1] + _allowed(problem, sizes, stage, block), sizes, timing
        )
    counts = np.empty(blocks, dtype=np.int64)
    now = problem.present
    for block in range(blocks):
        moves = timing.start_hours * np.maximum(sizes - now, 0)
        moves = moves + timing.drain_hours * np.maximum(now - sizes, 0)
        total = moves + _allowed(problem, sizes, stage, block) + to_go[block + 1]
        best = int(sizes[int(np.argmin(total))])
        kept = int(problem.keep[block : block + problem.hold_blocks + 1].max())
        now = max(best, min(now, kept))
        counts[block] = now
    return counts


def _sizes(problem: ScheduleProblem) -> Counts:
    tops = (problem.present, int(problem.needs.max(initial=0)), int(problem.least.max(initial=0)))
    most = max(tops)
    if most < _MOST_SIZES:
        return np.arange(most + 1)
    even = np.round(np.linspace(0, most, _MOST_SIZES)).astype(np.int64)
    return np.unique(np.concatenate([even, problem.least, [problem.present]]))


def _stage_hours(problem: ScheduleProblem, sizes: Counts, costs: PlanCosts) -> Floats:
    """`[block, size]`: engine-hours held, plus `short_weight` times the mean of those missing."""
    hours = np.empty((len(problem.least), len(sizes)))
    futures = len(problem.needs)
    for block, of_block in enumerate(np.sort(problem.needs, axis=0).T):
        above = np.append(np.cumsum(of_block[::-1])[::-1], 0)
        first = np.searchsorted(of_block, sizes, side="right")
        missed = (above[first] - sizes * (futures - first)) / max(futures, 1)
        hours[block] = sizes + costs.short_weight * missed
    hours *= problem.block_hours
    return hours


def _allowed(problem: ScheduleProblem, sizes: Counts, stage: Floats, block: int) -> Floats:
    """Cost of the block by size, infinite for sizes that the pool cannot have."""
    least, most = int(problem.least[block]), int(sizes[-1])
    if block < problem.reachable:
        most = problem.present
        least = min(least, most)
    cost: Floats = np.where((sizes >= least) & (sizes <= most), stage[block], np.inf)
    return cost


def _least_cost(after: Floats, sizes: Counts, timing: PlanTiming) -> Floats:
    """Least cost of a move and all that follows, from each size: two running minima."""
    up = np.minimum.accumulate((after + timing.start_hours * sizes)[::-1])[::-1]
    down = np.minimum.accumulate(after - timing.drain_hours * sizes)
    cheapest: Floats = np.minimum(
        up - timing.start_hours * sizes, down + timing.drain_hours * sizes
    )
    return cheapest
