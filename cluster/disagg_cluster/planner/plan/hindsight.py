"""What a split wasted over a past window, and which split would have been the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds
from disagg_cluster.planner.plan.schedule import (
    PlanCosts,
    PlanTiming,
    ScheduleProblem,
    cheapest_schedule,
)
from disagg_cluster.planner.plan.worker_option import Counts, WorkerOption, block_needs
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True, eq=False)
class HeldEngines:
    """Engines of one role that were held in each step."""

    option: WorkerOption
    engines: Counts


@dataclass(frozen=True, slots=True)
class SplitOutcome:
    """What some engines cost and missed over the window.

    `idle_gpu_hours` were held and not needed, `short_gpu_hours` needed and not held;
    `minutes_over_target` had too few engines of some role. Energy and money are those of the idle
    GPU-hours, None if idle power or price is not known.
    """

    engines: tuple[tuple[Role, int, int], ...]
    gpu_hours: float
    idle_gpu_hours: float
    short_gpu_hours: float
    minutes_over_target: float
    idle_gpu_hours_by_role: tuple[tuple[Role, float], ...]
    idle_kilowatt_hours: float | None
    idle_money: float | None


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The split as it was, the best fixed one on as many GPUs, and the best of all.

    `engines` of an outcome are `(role, fewest, most)`. `following` changes with the load, knows it
    in advance, and pays for its moves.
    """

    window_seconds: float
    present: SplitOutcome
    best_static: SplitOutcome
    following: SplitOutcome


def hindsight(
    load: LoadPaths,
    base_mix: RequestMix,
    held: Sequence[HeldEngines],
    bounds: PlanBounds,
    timing: PlanTiming,
    costs: PlanCosts | None = None,
) -> Hindsight | UndecidedCapacity:
    """Judge the engines that were held by the load that arrived.

    Args:
        load: The load that arrived, as a single path in steps of some minutes, without gaps.
        base_mix: The requests apart from their number and lengths.
        held: One kind of engines for each role, by step.
        bounds: How many engines each role keeps; prices and power of the GPUs, as far as known.
        timing: How long moves take.
        costs: What being short costs over being idle.

    Raises:
        ValueError: Nothing was held, not one number for each step, or not one path.
    """
    if load.count != 1 or not held or any(len(each.engines) != load.steps for each in held):
        raise ValueError("hindsight takes one path, and held engines of each of its steps")
    needs = []
    for each in held:
        found = block_needs(each.option, load, base_mix)
        if isinstance(found, UndecidedCapacity):
            return found
        needs.append(found[0])
    hours = load.step_seconds / 3600

    def outcome(engines: Sequence[Counts]) -> SplitOutcome:
        return _outcome(held, needs, engines, hours, bounds.offers)

    following = []
    for each, need in zip(held, needs, strict=True):
        kept = np.maximum(need, bounds.least_engines)
        problem = ScheduleProblem(
            needs=need[None, :],
            least=kept,
            keep=kept,
            present=int(each.engines[0]),
            reachable=0,
            block_hours=hours,
            hold_blocks=max(1, round(timing.hold_seconds / load.step_seconds)),
        )
        following.append(cheapest_schedule(problem, timing, costs or PlanCosts()))
    return Hindsight(
        window_seconds=load.horizon_seconds,
        present=outcome([each.engines for each in held]),
        best_static=outcome(
            [
                np.full(load.steps, count, dtype=np.int64)
                for count in _best_static(held, needs, bounds.least_engines)
            ]
        ),
        following=outcome(following),
    )


def _best_static(held: Sequence[HeldEngines], needs: Sequence[Counts], least: int) -> list[int]:
    """The engines with the fewest short steps on no more GPUs than were held; then the fewest.

    For one role or two: for each number of the first, the second gets the remaining GPUs. Each role
    keeps `least`, as far as the GPUs suffice.
    """
    sizes = [each.option.gpus for each in held]
    by_role = [size * each.engines for size, each in zip(sizes, held, strict=True)]
    gpus = int(np.sum(by_role, axis=0).max())
    tops = [max(int(need.max(initial=0)), least) for need in needs]
    best: tuple[int, float, int, list[int]] | None = None
    for first in range(min(gpus // sizes[0], tops[0]) + 1):
        counts = [first]
        if len(held) > 1:
            counts.append(min((gpus - first * sizes[0]) // sizes[1], tops[1]))
        short = np.zeros(len(needs[0]), dtype=bool)
        for need, count in zip(needs, counts, strict=True):
            short |= need > count
        # The fewest that leave no more steps short.
        fewest = [
            max(int(need[~short].max(initial=0)), min(least, count))
            for need, count in zip(needs, counts, strict=True)
        ]
        lacking = max(least - min(counts), 0)
        size = sum(n * s for n, s in zip(fewest, sizes, strict=True))
        rank = (lacking, float(short.mean()), size, fewest)
        best = rank if best is None else min(best, rank)
    return best[3] if best else [0 for _ in held]


def _outcome(
    held: Sequence[HeldEngines],
    needs: Sequence[Counts],
    engines: Sequence[Counts],
    hours: float,
    offers: Sequence[GpuOffer],
) -> SplitOutcome:
    by_name = {offer.gpu_name: offer for offer in offers}
    short: Floats = np.zeros(len(needs[0]))
    total = idle = lacking = 0.0
    energy: float | None = 0.0
    money: float | None = 0.0
    ranges = []
    idle_by_role = []
    for each, need, counts in zip(held, needs, engines, strict=True):
        gpus = each.option.gpus
        over = float(np.maximum(counts - need, 0).sum()) * gpus * hours
        total += float(counts.sum()) * gpus * hours
        idle += over
        lacking += float(np.maximum(need - counts, 0).sum()) * gpus * hours
        short = np.maximum(short, need > counts)
        offer = by_name.get(each.option.gpu_name)
        watts = None if offer is None else offer.idle_watts
        price = None if offer is None else offer.price_per_hour
        energy = None if energy is None or watts is None else energy + over * watts / 1000
        money = None if money is None or price is None else money + over * price
        idle_by_role.append((each.option.role, over))
        ranges.append((each.option.role, int(counts.min()), int(counts.max())))
    return SplitOutcome(
        engines=tuple(ranges),
        gpu_hours=total,
        idle_gpu_hours=idle,
        short_gpu_hours=lacking,
        minutes_over_target=float(short.sum()) * hours * 60,
        idle_gpu_hours_by_role=tuple(idle_by_role),
        idle_kilowatt_hours=energy,
        idle_money=money,
    )
