"""A day under all rules, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bench.plan.days import make_day
from bench.plan.profile import Profile, worker_options
from bench.plan.replay import GPUS, Outcome, replay
from bench.plan.rules import (
    SHORT_WEIGHTS,
    TARGETS,
    Engines,
    FixedRatio,
    LastValue,
    Ours,
    Reactive,
    Rule,
    Static,
    TokenVelocity,
    pairs,
    static_engines,
)

from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds

LEVELS = (0.95, 0.99, 1.0)
OURS, STATIC, REACTIVE, LAST_VALUE = "ours", "static in hindsight", "reactive", "last value"
HETERO, TOKENS = "HeteroScale's rule", "TokenScale's velocity"
GPU_HOURS_A_MINUTE = 2.0
"""The cost of a model's minute over target: about ten times that of its GPUs in a minute."""
BARS = {
    "minutes over / reactive's": 0.5,
    "GPU-hours / reactive's": 1.0,
    "rules better in both": 0.0,
}
Found = dict[str, Outcome]


def live(seed: int, minutes: int, only: str = "") -> Found:
    """Simulate a day under all rules, or those whose names start with `only`."""
    days = make_day(seed, minutes)
    profile = Profile(days, worker_options(days))
    bounds = PlanBounds((GpuOffer(profile.options[0][0].gpu_name, GPUS),))
    at_first = pairs(
        [
            profile.engines(number, role, profile.mix(number, 0, 5))
            for number in range(len(days))
            for role in range(2)
        ]
    )
    found = {}
    for name, make in rules(profile, bounds).items():
        if name.startswith(only):
            rule = make()
            first: Engines = rule.engines if isinstance(rule, Static) else at_first
            found[name] = replay(days, rule, first, minutes)
    return found


def rules(profile: Profile, bounds: PlanBounds) -> Mapping[str, Callable[[], Rule]]:
    """Return all rules by name; those with a target at each of `TARGETS`."""
    found: dict[str, Callable[[], Rule]] = {LAST_VALUE: partial(LastValue, profile)}
    for weight in SHORT_WEIGHTS:
        found[f"{OURS} {weight:g}"] = partial(Ours, weight, profile, bounds)
    for level in LEVELS:
        found[f"{STATIC} {level:g}"] = lambda level=level: Static(static_engines(profile, level))
    kinds = {REACTIVE: Reactive, HETERO: FixedRatio, TOKENS: TokenVelocity}
    for name, kind in kinds.items():
        for target in TARGETS:
            found[f"{name} {target:g}"] = partial(kind, target, profile)
    return found


def best_of(total: Found) -> dict[str, str]:
    """Return, for each rule, its name at its best target: the least cost of GPUs and minutes.

    Ours is the short weight with the fewest minutes on no more GPU-hours than the reactive rule's
    best; if none has so few, the one with the fewest GPU-hours.
    """
    best = {
        kind: min(names, key=lambda name: cost(total[name]))
        for kind in (STATIC, REACTIVE, LAST_VALUE, HETERO, TOKENS)
        if (names := [name for name in total if name.startswith(kind)])
    }
    most = total[best[REACTIVE]].gpu_hours
    ours = [name for name in total if name.startswith(OURS)]
    lean = [name for name in ours if total[name].gpu_hours <= most]
    best[OURS] = (
        min(lean, key=lambda name: total[name].minutes_over)
        if lean
        else min(ours, key=lambda name: total[name].gpu_hours)
    )
    return best


def cost(outcome: Outcome) -> float:
    """Return GPU-hours plus the cost of minutes over target."""
    return outcome.gpu_hours + GPU_HOURS_A_MINUTE * outcome.minutes_over


def figures_of(best: Mapping[str, str], total: Found) -> dict[str, float | None]:
    """Return the figures that bars apply to, and ours itself."""
    ours, reactive = total[best[OURS]], total[best[REACTIVE]]
    better = [
        name
        for name, other in total.items()
        if not name.startswith(OURS)
        and other.gpu_hours <= ours.gpu_hours
        and other.minutes_over <= ours.minutes_over
    ]
    return {
        "minutes over / reactive's": ours.minutes_over / max(1, reactive.minutes_over),
        "GPU-hours / reactive's": ours.gpu_hours / reactive.gpu_hours,
        "rules better in both": float(len(better)),
        "GPU-hours": ours.gpu_hours,
        "minutes over": float(ours.minutes_over),
        "attainment": ours.attainment,
        "requests": float(ours.requests),
    }
