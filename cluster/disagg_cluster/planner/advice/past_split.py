"""What the engines of a model wasted in the days that are past, and which split had been best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.advice.demands import ClusterEngines, DemandBuilder, requests_like
from disagg_cluster.planner.capacity.pool_capacity import UndecidedCapacity
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.plan.hindsight import HeldEngines, Hindsight, hindsight
from disagg_cluster.planner.plan.model_demand import BLOCK_SECONDS, RunningEngines
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.model import Role

WINDOW_SECONDS = 7 * 86_400.0
"""How far back is looked, where the history is that long."""
_LEAST_SECONDS = 3600.0
# Busy GPUs of a minute are a rate between two scrapes, which are not to the second.
_BUSY_TOLERANCE = 1.05


@dataclass(frozen=True, slots=True)
class PastSplit:
    """The engines of now held against the load of a past window.

    No history tells how many engines there were: it is judged as if those of now had run all
    along. `running` says that they are those that run, else they are those of the planner file.
    `price_per_hour` is that of a GPU, None where it is not known or not one price.
    Of the window of `window_seconds` so much is known as the hindsight's window is long.
    """

    key: LoadKey
    running: bool
    window_seconds: float
    price_per_hour: float | None
    hindsight: Hindsight


@dataclass(frozen=True, slots=True)
class UndecidedPastSplit:
    """Nothing can be said of a model's past split, and why."""

    key: LoadKey
    reason: str


def past_split(
    builder: DemandBuilder, config: PlannerConfig, history: LoadHistory, engines: ClusterEngines
) -> PastSplit | UndecidedPastSplit:
    """Judge one model's engines of now by the load of the last `WINDOW_SECONDS`.

    Args:
        builder: Keeps the capacities that it worked out for the plan.
        config: The planner file.
        history: The load of the model until now.
        engines: Those that run.
    """
    key = history.key
    told = config.of_model(key.model_name, key.engine_namespace)
    there = sorted(
        (each for each in engines.of_model_or_file(key, told) if each.engines),
        key=lambda each: list(Role).index(each.role),
    )
    options = _options_of(there, builder.options(key, engines))
    if isinstance(options, str):
        return UndecidedPastSplit(key, options)
    running = bool(engines.running)
    gpus = sum(each.gpus * each.engines for each in there)
    window = _window(history, gpus if running else np.inf)
    if isinstance(window, str):
        return UndecidedPastSplit(key, window)
    load, window_seconds = window
    held = [
        HeldEngines(option, np.full(load.steps, each.engines, dtype=np.int64))
        for option, each in zip(options, there, strict=True)
    ]
    bounds, timing = config.bounds(), config.timing
    found = hindsight(
        load,
        requests_like(history),
        held,
        bounds.offers,
        PlanTiming(timing.lead_seconds, timing.drain_seconds, timing.hold_seconds),
        PlanCosts(config.short_weight),
    )
    if isinstance(found, UndecidedCapacity):
        return UndecidedPastSplit(key, f"no capacity: {found.reason}")
    prices = {bounds.price(option.gpu_name) for option in options}
    price = prices.pop() if len(prices) == 1 else None
    return PastSplit(key, running, window_seconds, price, found)


def _options_of(
    there: Sequence[RunningEngines], options: Sequence[WorkerOption]
) -> list[WorkerOption] | str:
    """Of each kind of engines that is there its option, or why they cannot be judged."""
    if not there:
        return "which engines there were is not known"
    roles = [each.role for each in there]
    if len(set(roles)) < len(roles):
        return "engines of one role are of several kinds: which of them was idle is not known"
    if set(roles) not in ({Role.MIXED}, {Role.PREFILL, Role.DECODE}):
        return f"engines that are {' and '.join(sorted(roles))} are no split that can be judged"
    known: dict[tuple[Role, str, int], WorkerOption] = {
        (each.role, each.gpu_name, each.gpus): each for each in options
    }
    found = []
    for each in there:
        option = known.get((each.role, each.gpu_name, each.gpus))
        if option is None:
            return f"what steps of {each.role} engines take is not known"
        found.append(option)
    return found


def _window(history: LoadHistory, gpus: float) -> tuple[LoadPaths, float] | str:
    """What came, in blocks and without the gaps, with the seconds from its beginning until now.

    It begins after the last step in which more GPUs were busy than there are now: there the
    engines were others.
    """
    requests = history.requests
    if requests is None:
        return "how many requests arrive is not known"
    step = requests.step_seconds
    steps = max(1, round(WINDOW_SECONDS / step))
    told = (requests, history.prompt_tokens, history.output_tokens)
    loads = [each.values[-steps:] for each in told]
    known = np.logical_and.reduce([np.isfinite(each) for each in loads])
    others = np.flatnonzero(_busy_gpus(history, len(known)) > gpus * _BUSY_TOLERANCE)
    first = int(others[-1]) + 1 if len(others) else 0
    known[:first] = False
    if known.sum() * step < _LEAST_SECONDS:
        if first:
            return f"until lately more GPUs were busy than the {gpus:g} that run now"
        return "less than an hour of its load is known"
    came = [each[known][None, :] for each in loads]
    if not came[0].any():
        return "no request came"
    begin = int(np.flatnonzero(known)[0])
    start_seconds = requests.end_seconds - (len(known) - begin) * step
    load = LoadPaths(start_seconds, step, *came)
    return load.in_blocks(max(BLOCK_SECONDS, step)), requests.end_seconds - start_seconds


def _busy_gpus(history: LoadHistory, steps: int) -> Floats:
    """By step, as far as it is known; 0 elsewhere."""
    busy = np.zeros(steps)
    for series in (history.prefill_gpus, history.decode_gpus):
        if series is not None:
            busy += np.nan_to_num(series.values[-steps:])
    return busy
