"""The reasons of a plan, in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from disagg_cluster.planner.forecast.driver_shifts import DriverShift
from disagg_cluster.planner.forecast.forecast_error import ForecastError
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.model_demand import ModelDemand
from disagg_cluster.planner.plan.role_pool import RolePool
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_cluster.planner.plan.worker_option import Counts, EngineCurve, step_mix
from disagg_exporter.model import Role
from disagg_exporter.model.counted import agreeing, counted

_PERCENT = 100


def clock(seconds: float, now_seconds: float) -> str:
    """The time of day in UTC, with the date if it is another day."""
    same_day = int(seconds // 86_400) == int(now_seconds // 86_400)
    return time.strftime("%H:%M UTC" if same_day else "%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def shift_words(shift: DriverShift, now_seconds: float) -> str:
    """What shifted, from what to what, since when."""
    since = clock(shift.since_seconds, now_seconds)
    return (
        f"{shift.name} {_number(shift.before)} → {_number(shift.after)} {shift.unit} "
        f"({_number(shift.factor)} times) since {since}"
    )


def error_words(error: ForecastError | None) -> str:
    """The error of recent forecasts."""
    if error is None:
        return "no forecast has come due yet: how wrong they are is not known"
    high_or_low = "high" if error.bias_ratio > 0 else "low"
    return (
        f"{counted(error.count, 'forecast')} {_minutes(error.ahead_seconds)} ahead came due: "
        f"off by {error.error_ratio * _PERCENT:.0f} % in the median, "
        f"{abs(error.bias_ratio) * _PERCENT:.0f} % too {high_or_low}; "
        f"{error.held * _PERCENT:.0f} % of the actual loads lay below the "
        f"{error.quantile * _PERCENT:.0f} % quantile"
    )


def pool_words(
    demand: ModelDemand,
    pool: RolePool,
    paths: LoadPaths,
    counts: Counts,
    needed: Counts,
    timing: PlanTiming,
    costs: PlanCosts,
    now_seconds: float,
) -> tuple[str, ...]:
    """Why a pool gets the engines that it gets; at least one sentence.

    `needed` are those that it needs in each block beside its role's other pools.
    """
    option = pool.option
    if pool.needed_at(costs.quantile).any():
        words = list(_need_words(demand, pool, paths, costs, now_seconds))
    else:
        kept = int(pool.needed.max())
        words = [
            f"{costs.quantile * _PERCENT:.0f} % of futures need no engine in the next "
            f"{_hours(paths.horizon_seconds)}"
            + (f"; {kept} {agreeing(kept, 'is', 'are')} kept at least" if kept else "")
        ]
    if option.role is not Role.PREFILL and option.costs.shape.kv_tokens is None:
        words.append(
            "the size of their KV cache is not known: it bounds nothing here, so that more may be "
            "needed"
        )
    if pool.cheaper_than:
        words.append(f"{option.gpu_name} serve it cheaper than {pool.cheaper_than}")
    return (
        *words,
        *_change_words(pool.present, counts, needed, paths, timing, costs, now_seconds),
        *_late_words(pool.present, counts, needed, paths.step_seconds, timing),
        *_lacking(needed - counts, paths, timing, now_seconds),
    )


def _need_words(
    demand: ModelDemand, pool: RolePool, paths: LoadPaths, costs: PlanCosts, now_seconds: float
) -> Iterator[str]:
    """How many engines are needed at most, when, for which load, and what limits them."""
    option = pool.option
    peak = int(np.argmax(pool.needed))
    yield (
        f"{costs.quantile * _PERCENT:.0f} % of futures need at most "
        f"{counted(int(pool.needed[peak]), 'engine')} of {option.gpus} x {option.gpu_name} for "
        f"{option.role} at {_block_clock(paths, peak, now_seconds)}, the most of the next "
        f"{_hours(paths.horizon_seconds)}: {_load_words(paths, peak)}"
    )
    curve = option.curve(step_mix(paths, peak, demand.base_mix))
    if isinstance(curve, EngineCurve):
        yield f"the limit reached first is {curve.limit}"
        if not curve.meets_targets:
            yield (
                "requests are too long for the targets with any number of engines: these keep the "
                "queue from growing"
            )


def _change_words(
    present: int,
    counts: Counts,
    needed: Counts,
    paths: LoadPaths,
    timing: PlanTiming,
    costs: PlanCosts,
    now_seconds: float,
) -> Iterator[str]:
    """The first change of the present engines, or that none is needed."""
    changed = np.flatnonzero(counts != present)
    if not changed.size:
        if not (counts < needed).any():
            yield f"{_those_present(present)} enough, and none too many: nothing to do"
        return
    first = int(changed[0])
    at, more = _block_clock(paths, first, now_seconds), int(counts[first]) - present
    if counts[first] < min(present, needed[first]):
        yield f"at {at} {-more} of {present} must go though needed: the bounds leave no more"
    elif more < 0:
        back = first + np.flatnonzero(counts[first:] > counts[first])
        until = (
            f"until {_block_clock(paths, back[0], now_seconds)}" if back.size else "from then on"
        )
        yield (
            f"at {at} {-more} of {present} may go: not needed {until}, even with "
            f"{costs.release_margin * _PERCENT:.0f} % more load"
        )
    else:
        yield (
            f"{more} more than the present {present} must serve at {at}, and "
            f"{agreeing(more, 'takes', 'take')} {_minutes(timing.lead_seconds)} to start"
        )


def _late_words(
    present: int, counts: Counts, needed: Counts, step_seconds: float, timing: PlanTiming
) -> Iterator[str]:
    """What is missing until an engine ordered now has started."""
    late = np.flatnonzero(counts < needed)
    if not late.size or counts[late[0]] < present or late[0] * step_seconds > timing.lead_seconds:
        return
    # Engines that the bounds do not allow will not come after a start either.
    started = min(len(counts) - 1, int(np.ceil(timing.lead_seconds / step_seconds)))
    missing = min(needed[late[0]], counts[started]) - counts[late[0]]
    if missing > 0:
        yield (
            f"one more takes {_minutes(timing.lead_seconds)} to start, so "
            f"{missing} {agreeing(missing, 'is', 'are')} missing until then"
        )


def _lacking(
    short: Counts, paths: LoadPaths, timing: PlanTiming, now_seconds: float
) -> Iterator[str]:
    """What is needed and cannot come, whenever it is ordered."""
    ahead = now_seconds + timing.lead_seconds - paths.start_seconds
    reachable = max(0, int(np.ceil(ahead / paths.step_seconds - 1e-9)))
    worst = reachable + int(np.argmax(short[reachable:]))
    if short[worst] > 0:
        at = _block_clock(paths, worst, now_seconds)
        lacking = counted(int(short[worst]), "more engine")
        yield f"{lacking} needed at {at} will be missing: the bounds leave no more"


def _block_clock(paths: LoadPaths, block: int, now_seconds: float) -> str:
    return clock(paths.start_seconds + block * paths.step_seconds, now_seconds)


def _minutes(seconds: float) -> str:
    return counted(round(seconds / 60), "minute")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2g} h" if seconds >= 3600 else _minutes(seconds)


def _those_present(engines: int) -> str:
    return "the present one is" if engines == 1 else f"the present {engines} are"


def _load_words(paths: LoadPaths, block: int) -> str:
    """The median load of a block, by its drivers."""
    requests, prompt, output = (
        float(np.median(driver[:, block]))
        for driver in (paths.requests, paths.prompt_tokens, paths.output_tokens)
    )
    if not requests > 0:
        return "in the median no request arrives"
    return (
        f"in the median {_number(requests)} requests/s with prompts of "
        f"{_number(prompt / requests)} tokens to compute and outputs of "
        f"{_number(output / requests)}"
    )


def _number(value: float) -> str:
    """Three digits, with separators of thousands."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
