"""How good plans of GPUs are beside other rules: `make bench-plan`.

Ten made-up days of three models on one fleet of 128 H100s, each with a shifting load, are lived
through under each rule. What comes of it is told by a simulation of single requests that shares no
formula with the planner (bench/plan/truth.py); steps take what the shipped price tables say. Some
minutes on two cores; `--days 2` looks at fewer.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.plan.days import MINUTES, make_day
from bench.plan.replay import GPUS, Outcome, replay
from bench.plan.rules import (
    SHORT_WEIGHTS,
    TARGETS,
    Engines,
    FixedRatio,
    LastValue,
    Ours,
    Profile,
    Reactive,
    Rule,
    Static,
    TokenVelocity,
    pairs,
    static_engines,
    worker_options,
)
from bench.report import finish

from disagg_cluster.planner.plan.bounds import GpuOffer, PlanBounds

REPORT = Path("bench/out/plan.json")
LEVELS = (0.95, 0.99, 1.0)
OURS, STATIC, REACTIVE, LAST_VALUE = "ours", "static in hindsight", "reactive", "last value"
HETERO, TOKENS = "HeteroScale's rule", "TokenScale's velocity"
GPU_HOURS_A_MINUTE = 2.0
"""What a model's minute over target costs: about ten times what its GPUs cost in a minute."""
BARS = {
    "minutes over / reactive's": 0.5,
    "GPU-hours / reactive's": 1.0,
    "rules better in both": 0.0,
}
Found = dict[str, Outcome]


def main() -> int:
    """Live the days, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--minutes", type=int, default=MINUTES, help="of each day")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    # Forecasts are small matrices: threads would only get into each other's way.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    total: Found = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for found in pool.map(partial(live, minutes=asked.minutes), range(asked.days)):
            for name, outcome in found.items():
                total[name] = total[name] + outcome if name in total else outcome
    best = best_of(total)
    figures = figures_of(best, total)
    return finish(
        REPORT,
        figures,
        BARS,
        lambda figures, met: _table(total, best, figures, met),
        as_json=asked.json,
        days=asked.days,
        minutes=asked.minutes,
    )


def live(seed: int, minutes: int, only: str = "") -> Found:
    """A day under all rules, or those whose name begins like this."""
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
    """All rules by name; those with a target at each of the grid."""
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
    """By rule, the name of it at its best target: with the least cost of GPUs and minutes.

    Ours is taken at the short weight with the fewest minutes on no more GPU-hours than the reactive
    rule's best; if none has so few, at the one with the fewest.
    """
    best = {
        kind: min(names, key=lambda name: _cost(total[name]))
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


def _cost(outcome: Outcome) -> float:
    return outcome.gpu_hours + GPU_HOURS_A_MINUTE * outcome.minutes_over


def figures_of(best: Mapping[str, str], total: Found) -> dict[str, float | None]:
    """What bars are held against, and ours itself."""
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


def _table(
    total: Found,
    best: Mapping[str, str],
    figures: Mapping[str, float | None],
    met: Mapping[str, bool],
) -> str:
    lines = [f"{'':30}{'GPU-hours':>10}{'minutes over':>14}{'attainment':>12}"]
    for name, outcome in total.items():
        mark = " *" if name in best.values() else ""
        lines.append(
            f"{name:30}{outcome.gpu_hours:10.0f}{outcome.minutes_over:14d}"
            f"{outcome.attainment * 100:11.2f} %{mark}"
        )
    lines.append("* the best of its rule")
    for name, bar in BARS.items():
        verdict = "met" if met[name] else "MISSED"
        lines.append(f"{name:30}{figures[name]:10.2f}{bar:14g}  {verdict}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
