"""The engines of one role of one model on one kind of GPUs: those needed, and those desired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.plan.schedule import (
    PlanCosts,
    PlanTiming,
    ScheduleProblem,
    cheapest_schedule,
)
from disagg_cluster.planner.plan.worker_option import Counts, WorkerOption, block_needs
from disagg_exporter.model import Role

SWITCH_GAIN = 0.15
"""How much cheaper other GPUs must be before they take over from those that run."""


@dataclass(frozen=True, slots=True, eq=False)
class RolePool:
    """One kind of engines for one role: `needs[path, block]` if they alone served it.

    `needed` is their quantile in each block, `keep` the same under somewhat more load and never
    less; both are at least the number that is always kept. `cheaper_than` names the GPUs that this
    pool takes over from.
    """

    option: WorkerOption
    present: int
    needs: Counts
    needed: Counts
    keep: Counts
    cheaper_than: str = ""

    def needed_at(self, quantile: float) -> Counts:
        """Engines that are enough in each block with this probability."""
        return _upper_quantile(self.needs, quantile)


def role_pools(
    demand: ModelDemand,
    role: Role,
    paths: LoadPaths,
    busier: LoadPaths,
    least: int,
    costs: PlanCosts,
    price: Callable[[str], float | None],
) -> list[RolePool] | UndecidedCapacity:
    """All pools that could serve a role: first the one to grow, then by rising cost.

    What `busier` futures need is not released.
    """
    found: list[tuple[float, RolePool]] = []
    reasons = []
    # GPUs without a price count as the most expensive ones; without any price all cost the same.
    prices = [price(option.gpu_name) for option in demand.options]
    dear = max((each for each in prices if each), default=1.0)
    for option in demand.options:
        if option.role is not role:
            continue
        needs = block_needs(option, paths, demand.base_mix)
        more = block_needs(option, busier, demand.base_mix)
        if isinstance(needs, UndecidedCapacity) or isinstance(more, UndecidedCapacity):
            reasons.append(needs if isinstance(needs, UndecidedCapacity) else more)
            continue
        needed, keep = (
            np.maximum(_upper_quantile(each, costs.quantile), least) for each in (needs, more)
        )
        pool = RolePool(option, demand.present(option), needs, needed, np.maximum(keep, needed))
        offered = price(option.gpu_name)
        each_gpu = dear if offered is None or not any(prices) else offered
        found.append((float(needed.sum()) * option.gpus * each_gpu, pool))
    if not found:
        known = "; ".join(each.reason for each in reasons if isinstance(each, UndecidedCapacity))
        return UndecidedCapacity(
            known or f"no workers for {role} are offered: add one to `workers` in the planner file"
        )
    found.sort(key=lambda each: each[0])
    running = [each for each in found if each[1].present]
    first = found[0]
    if running and first[0] >= (1 - SWITCH_GAIN) * running[0][0]:
        first = running[0]
    elif running and not first[1].present:
        first = (first[0], replace(first[1], cheaper_than=running[0][1].option.gpu_name))
    rest = [pool for _, pool in found if pool.option is not first[1].option]
    return [first[1], *rest]


def desired_engines(
    pools: list[RolePool], reachable: int, block_hours: float, timing: PlanTiming, costs: PlanCosts
) -> list[Counts]:
    """Engines that each pool of a role should have in each block; only the first pool grows.

    Others that run serve their part as long as the first has too few, and are the first to go when
    load falls. If the first takes over because it is cheaper, they go once it can serve.
    """
    first, *others = pools
    hold = max(1, round(timing.hold_seconds / (block_hours * 3600)))
    blocks = len(first.needed)
    unserved = np.ones(blocks)
    desired = []
    for other in others:
        if first.cheaper_than:
            kept = np.where(np.arange(blocks) <= reachable, other.present, 0)
        else:
            open_share = np.clip(1 - first.present / np.maximum(first.keep, 1), 0.0, 1.0)
            kept = _max_over_hold(
                np.ceil(other.keep * open_share * (1 - 1e-9)).astype(np.int64), hold
            )
            kept = np.minimum(kept, other.present)
            unserved -= kept / np.maximum(other.needed, 1)
        desired.append(kept)
    unserved = np.clip(unserved, 0.0, 1.0)

    def part(counts: Counts) -> Counts:
        found: Counts = np.ceil(counts * unserved * (1 - 1e-9)).astype(np.int64)
        return found

    problem = ScheduleProblem(
        needs=part(first.needs),
        least=part(first.needed),
        keep=part(first.keep),
        present=first.present,
        reachable=reachable,
        block_hours=block_hours,
        hold_blocks=hold,
    )
    return [cheapest_schedule(problem, timing, costs), *desired]


def overflow_engines(
    pools: list[RolePool],
    desired: list[Counts],
    granted: list[Counts],
    rank: int,
    hold_blocks: int,
) -> Counts:
    """Engines that the pool of this rank should have where bounds left others too few."""
    missing = np.zeros(len(granted[rank]))
    for pool, requested, got in zip(pools, desired, granted, strict=True):
        missing += (requested - got) / np.maximum(pool.needed, 1)
    more = np.ceil(np.clip(missing, 0.0, 1.0) * pools[rank].needed * (1 - 1e-9))
    found: Counts = granted[rank] + _max_over_hold(more.astype(np.int64), hold_blocks)
    return found


def _max_over_hold(counts: Counts, hold_blocks: int) -> Counts:
    """The most in a block and in those that follow within the hold time."""
    padded = np.concatenate([counts, np.zeros(hold_blocks, dtype=np.int64)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, hold_blocks + 1)
    return np.asarray(windows.max(axis=1), dtype=np.int64)


def _upper_quantile(needs: Counts, quantile: float) -> Counts:
    """The quantile of all futures, in whole engines."""
    found = np.quantile(needs, quantile, axis=0, method="higher")
    return np.asarray(found, dtype=np.int64)
