"""The plan of one model: rows by horizon, reasons, costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.bounds import PlanBounds
from disagg_cluster.planner.plan.expected_cost import expected_cost
from disagg_cluster.planner.plan.gpu_plan import ModelPlan, PlanRow, RoleCourse, RolePlan
from disagg_cluster.planner.plan.planned_model import PlannedModel
from disagg_cluster.planner.plan.reasons import error_words, pool_words, shift_words
from disagg_cluster.planner.plan.role_pool import RolePool
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_cluster.planner.plan.worker_option import Counts

QUANTILES = (0.5, 0.9, 0.95)
HORIZONS_SECONDS = (0.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21_600.0, 43_200.0, 86_400.0)


def model_plan(
    model: PlannedModel,
    bounds: PlanBounds,
    timing: PlanTiming,
    costs: PlanCosts,
    reachable: int,
    now_seconds: float,
) -> ModelPlan:
    """The plan of a model whose pools have been granted their engines."""
    block_hours = model.paths.step_seconds / 3600
    roles = []
    for pools, granted in zip(model.roles, model.granted, strict=True):
        for rank, (pool, counts) in enumerate(zip(pools, granted, strict=True)):
            if rank and not pool.present and not counts.any():
                continue
            needed = {
                quantile: _own_needs(pools, granted, rank, _needed_at(quantile))
                for quantile in QUANTILES
            }
            roles.append(
                RolePlan(
                    role=pool.option.role,
                    gpu_name=pool.option.gpu_name,
                    gpus=pool.option.gpus,
                    engines=pool.present,
                    engines_now=_engines_now(pool, counts, reachable),
                    rows=tuple(_rows(model.paths, pool, counts, needed, reachable, now_seconds)),
                    course=_course(model.paths, pool, counts, needed),
                    reasons=(
                        *pool_words(
                            model.demand,
                            pool,
                            model.paths,
                            counts,
                            _own_needs(pools, granted, rank, lambda each: each.needed),
                            timing,
                            costs,
                            now_seconds,
                        ),
                        *(words for role, words in model.beside if role is pool.option.role),
                    ),
                )
            )
    known = model.paths.steps
    following = [
        ([_until(pool, known) for pool in pools], [counts[:known] for counts in granted])
        for pools, granted in zip(model.roles, model.granted, strict=True)
    ]
    staying = [
        (pools, [_unchanged(pool, counts) for pool, counts in zip(pools, granted, strict=True)])
        for pools, granted in following
    ]
    demand = model.demand
    return ModelPlan(
        model_name=demand.model_name,
        engine_namespace=demand.engine_namespace,
        horizon_seconds=model.paths.horizon_seconds,
        roles=tuple(roles),
        drivers=tuple(shift_words(shift, now_seconds) for shift in demand.drivers),
        error_so_far=error_words(demand.error),
        doing_nothing=expected_cost(staying, block_hours, bounds.price),
        following=expected_cost(following, block_hours, bounds.price),
    )


def _until(pool: RolePool, blocks: int) -> RolePool:
    """The pool over the first blocks, for which its load is forecast."""
    return replace(
        pool,
        needs=pool.needs[:, :blocks],
        needed=pool.needed[:blocks],
        keep=pool.keep[:blocks],
    )


def _unchanged(pool: RolePool, counts: Counts) -> Counts:
    staying: Counts = counts * 0 + pool.present
    return staying


def _engines_now(pool: RolePool, counts: Counts, reachable: int) -> int:
    """The engines planned for a lead time from now, if more than present; else those to keep."""
    planned = int(counts[min(reachable, len(counts) - 1)])
    return planned if planned > pool.present else int(counts[0])


def _rows(
    paths: LoadPaths,
    pool: RolePool,
    counts: Counts,
    needed: Mapping[float, Counts],
    reachable: int,
    now_seconds: float,
) -> list[PlanRow]:
    """Rows for each horizon within the forecast, by the block that it lies in.

    Blocks begin where the history ends, up to a block before now: an engine ordered now serves in
    the row of any horizon longer than its start.
    """
    gpus = pool.option.gpus
    rows = []
    begun_seconds = max(0.0, now_seconds - paths.start_seconds)
    for horizon in HORIZONS_SECONDS:
        if horizon > paths.horizon_seconds:
            break
        ahead = (begun_seconds + horizon) / paths.step_seconds
        block = min(max(0, math.ceil(ahead - 1e-9) - 1), len(counts) - 1)
        recommended = int(counts[block]) if horizon else _engines_now(pool, counts, reachable)
        for quantile, engines in needed.items():
            rows.append(
                PlanRow(
                    role=pool.option.role,
                    gpu_name=pool.option.gpu_name,
                    horizon_seconds=horizon,
                    quantile=quantile,
                    current=pool.present * gpus,
                    needed=int(engines[block]) * gpus,
                    recommended=recommended * gpus,
                    # Not by the recommended: engines ordered now do not serve yet.
                    shortfall=max(0, int(engines[block] - counts[block])) * gpus,
                )
            )
    return rows


def _course(
    paths: LoadPaths, pool: RolePool, counts: Counts, needed: Mapping[float, Counts]
) -> RoleCourse:
    gpus, known = pool.option.gpus, paths.steps
    return RoleCourse(
        start_seconds=paths.start_seconds,
        step_seconds=paths.step_seconds,
        needed={
            quantile: tuple((engines[:known] * gpus).tolist())
            for quantile, engines in needed.items()
        },
        serving=tuple((counts[:known] * gpus).tolist()),
    )


def _needed_at(quantile: float) -> Callable[[RolePool], Counts]:
    return lambda pool: pool.needed_at(quantile)


def _own_needs(
    pools: Sequence[RolePool],
    granted: Sequence[Counts],
    rank: int,
    alone: Callable[[RolePool], Counts],
) -> Counts:
    """Engines that a pool needs in each block beside what its role's other pools serve.

    `alone` says how many a pool needs that serves its role alone. The first pool needs what the
    others, on GPUs of other names, do not serve.
    """
    needed = alone(pools[rank])
    if rank:
        return np.minimum(needed, granted[rank])
    served = sum(
        counts / np.maximum(alone(pool), 1)
        for pool, counts in zip(pools[1:], granted[1:], strict=True)
    )
    unserved = np.maximum(1.0 - np.asarray(served), 0.0)
    found: Counts = np.ceil(needed * unserved - 1e-9).astype(np.int64)
    return found
