"""What the engines of a model wasted in past days, and which split would have been best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.advice.cluster_engines import ClusterEngines
from disagg_cluster.planner.advice.demands import DemandBuilder, recent_base_mix
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
"""Length of the window, if the history is that long."""
_LEAST_SECONDS = 3600.0
# Busy GPUs of a minute are a rate between two scrapes, whose times are not exact.
_BUSY_TOLERANCE = 1.05


@dataclass(frozen=True, slots=True)
class PastSplit:
    """The present engines, judged by the load of a past window.

    No history has the number of engines, so it is judged as if the present ones had run all along.
    `running` says whether these are the running engines or those of the planner file.
    `price_per_hour` is that of a GPU, None if it is not known or not one price. Of the window of
    `window_seconds`, the part that the hindsight's window is long is known.
    """

    key: LoadKey
    running: bool
    window_seconds: float
    price_per_hour: float | None
    hindsight: Hindsight


@dataclass(frozen=True, slots=True)
class UndecidedPastSplit:
    """A model's past split cannot be judged, for `reason`."""

    key: LoadKey
    reason: str


def past_split(
    builder: DemandBuilder, config: PlannerConfig, history: LoadHistory, engines: ClusterEngines
) -> PastSplit | UndecidedPastSplit:
    """Judge one model's present engines by the load of the last `WINDOW_SECONDS`.

    Args:
        builder: Caches the capacities that it computed for the plan.
        config: The planner file.
        history: The load of the model until now.
        engines: The engines that run.
    """
    key = history.key
    section = config.of_model(key.model_name, key.engine_namespace)
    present = sorted(
        (each for each in engines.of_model_or_file(key, section) if each.engines),
        key=lambda each: list(Role).index(each.role),
    )
    options = _options_of(present, builder.options(key, engines))
    if isinstance(options, str):
        return UndecidedPastSplit(key, options)
    running = bool(engines.running)
    gpus = sum(each.gpus * each.engines for each in present)
    window = _window(history, gpus if running else np.inf)
    if isinstance(window, str):
        return UndecidedPastSplit(key, window)
    load, window_seconds = window
    held = [
        HeldEngines(option, np.full(load.steps, each.engines, dtype=np.int64))
        for option, each in zip(options, present, strict=True)
    ]
    bounds, timing = config.bounds(), config.timing
    found = hindsight(
        load,
        recent_base_mix(history),
        held,
        bounds,
        PlanTiming(timing.lead_seconds, timing.drain_seconds, timing.hold_seconds),
        PlanCosts(config.short_weight),
    )
    if isinstance(found, UndecidedCapacity):
        return UndecidedPastSplit(key, f"no capacity: {found.reason}")
    prices = {bounds.price(option.gpu_name) for option in options}
    price = prices.pop() if len(prices) == 1 else None
    return PastSplit(key, running, window_seconds, price, found)


def _options_of(
    present: Sequence[RunningEngines], options: Sequence[WorkerOption]
) -> list[WorkerOption] | str:
    """The option of each kind of present engines, or why they cannot be judged."""
    if not present:
        return "which engines there were is not known"
    roles = [each.role for each in present]
    if len(set(roles)) < len(roles):
        return "engines of one role are of several kinds: which of them was idle is not known"
    if set(roles) not in ({Role.MIXED}, {Role.PREFILL, Role.DECODE}):
        return f"{' and '.join(sorted(roles))} engines are no split that can be judged"
    known: dict[tuple[Role, str, int], WorkerOption] = {
        (each.role, each.gpu_name, each.gpus): each for each in options
    }
    found = []
    for each in present:
        option = known.get((each.role, each.gpu_name, each.gpus))
        if option is None:
            return f"the step times of {each.role} engines are not known"
        found.append(option)
    return found


def _window(history: LoadHistory, gpus: float) -> tuple[LoadPaths, float] | str:
    """The load in blocks and without gaps, with the seconds from its beginning until now.

    It begins after the last step with more busy GPUs than there are now, as the engines were
    different until then.
    """
    requests = history.requests
    if requests is None:
        return "how many requests arrive is not known"
    step = requests.step_seconds
    steps = max(1, round(WINDOW_SECONDS / step))
    drivers = (requests, history.prompt_tokens, history.output_tokens)
    loads = [each.values[-steps:] for each in drivers]
    known = np.logical_and.reduce([np.isfinite(each) for each in loads])
    too_many = np.flatnonzero(_busy_gpus(history, len(known)) > gpus * _BUSY_TOLERANCE)
    first = int(too_many[-1]) + 1 if len(too_many) else 0
    known[:first] = False
    if known.sum() * step < _LEAST_SECONDS:
        if first:
            return f"until recently more GPUs were busy than the {gpus:g} that run now"
        return "less than an hour of its load is known"
    arrived = [each[known][None, :] for each in loads]
    if not arrived[0].any():
        return "no request arrived"
    begin = int(np.flatnonzero(known)[0])
    start_seconds = requests.end_seconds - (len(known) - begin) * step
    load = LoadPaths(start_seconds, step, *arrived)
    return load.in_blocks(max(BLOCK_SECONDS, step)), requests.end_seconds - start_seconds


def _busy_gpus(history: LoadHistory, steps: int) -> Floats:
    """Busy GPUs by step; 0 where not known."""
    busy = np.zeros(steps)
    for series in (history.prefill_gpus, history.decode_gpus):
        if series is not None:
            busy += np.nan_to_num(series.values[-steps:])
    return busy
