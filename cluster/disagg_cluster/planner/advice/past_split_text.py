"""What engines wasted in the past, as lines of text and values for JSON."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.planner.advice.past_split import PastSplit, UndecidedPastSplit
from disagg_cluster.planner.outlook.values import Value
from disagg_cluster.planner.outlook.wording import amount
from disagg_cluster.planner.plan.hindsight import SplitOutcome
from disagg_exporter.model.counted import counted

_DAY_SECONDS = 86_400.0
_HOUR_SECONDS = 3600.0
_WHOLE = 0.99


def past_split_words(past: PastSplit | UndecidedPastSplit) -> Iterator[str]:
    """What was idle in the window, and what the best fixed split would have been."""
    if isinstance(past, UndecidedPastSplit):
        yield f"in hindsight undecided: {past.reason}"
        return
    found = past.hindsight
    present, best, following = found.present, found.best_static, found.following
    which = "that run now" if past.running else "of the planner file"
    idle = f"{present.idle_gpu_hours:,.1f} of {present.gpu_hours:,.1f} GPU-hours idle beyond need"
    yield (
        f"last {_window(past)}, had the engines {which} run all along: {idle}"
        f"{_share(present, past.price_per_hour)}, {_minutes(present)} over target"
    )
    split = " + ".join(counted(engines, f"{role} engine") for role, engines, _ in best.engines)
    if round(best.minutes_over_target) >= found.window_seconds // 60 > 0:
        yield "best fixed split: none on so many GPUs keeps the targets at any time"
    elif best.engines == present.engines:
        yield f"best fixed split: the same, {split}"
    else:
        yield f"best fixed split: {split}, {_difference(best, present)}"
    yield f"engines that follow the load: {_difference(following, present)}"


def past_split_value(past: PastSplit | UndecidedPastSplit) -> Value:
    """The same, with energy; an undecided one has `undecided` with the reason."""
    if isinstance(past, UndecidedPastSplit):
        return {"undecided": past.reason}
    found = past.hindsight
    return {
        "engines_from": "running" if past.running else "planner_file",
        "window_seconds": past.window_seconds,
        "known_seconds": found.window_seconds,
        "present": _outcome(found.present),
        "best_static": _outcome(found.best_static),
        "following": _outcome(found.following),
    }


def _outcome(outcome: SplitOutcome) -> Value:
    return {
        "engines": {
            role.value: {"least": least, "most": most} for role, least, most in outcome.engines
        },
        "gpu_hours": outcome.gpu_hours,
        "idle_gpu_hours": outcome.idle_gpu_hours,
        "idle_gpu_hours_by_role": {
            role.value: hours for role, hours in outcome.idle_gpu_hours_by_role
        },
        "short_gpu_hours": outcome.short_gpu_hours,
        "minutes_over_target": outcome.minutes_over_target,
        "idle_kilowatt_hours": outcome.idle_kilowatt_hours,
        "idle_money": outcome.idle_money,
    }


def _window(past: PastSplit) -> str:
    known = past.hindsight.window_seconds
    if known >= _WHOLE * past.window_seconds:
        return _span(past.window_seconds)
    return f"{_span(past.window_seconds)} ({_span(known)} of them known)"


def _span(seconds: float) -> str:
    """A duration, as `7 days` or `5.5 hours`."""
    size, unit = (_DAY_SECONDS, "day") if seconds >= 2 * _DAY_SECONDS else (_HOUR_SECONDS, "hour")
    number = amount(seconds / size)
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


def _share(outcome: SplitOutcome, price_per_hour: float | None) -> str:
    """The share that was idle, with energy and money as far as they are known."""
    parts = [f"{100 * outcome.idle_gpu_hours / outcome.gpu_hours:.0f} %"]
    if outcome.idle_kilowatt_hours is not None:
        parts.append(f"{outcome.idle_kilowatt_hours:,.1f} kWh")
    if outcome.idle_money is not None:
        at = "" if price_per_hour is None else f" at {price_per_hour:,.2f}/h"
        parts.append(f"{outcome.idle_money:,.2f}{at}")
    return f" ({', '.join(parts)})"


def _difference(other: SplitOutcome, present: SplitOutcome) -> str:
    hours = other.gpu_hours - present.gpu_hours
    minutes = round(other.minutes_over_target) - round(present.minutes_over_target)
    return (
        f"{abs(hours):,.1f} GPU-hours {'more' if hours > 0 else 'less'}, "
        f"{counted(abs(minutes), 'minute')} {'more' if minutes >= 0 else 'less'} over target"
    )


def _minutes(outcome: SplitOutcome) -> str:
    return counted(round(outcome.minutes_over_target), "minute")
