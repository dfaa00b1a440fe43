"""One day under one rule: engines follow the rule, within the available GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from bench.plan.days import Day
from bench.plan.rules import Engines, Rule
from bench.plan.truth import EnginePool, ModelTruth

GPUS = 128
_ENDING_MINUTES = 10
"""How long the last requests may take: those that take longer are late in any case."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a day under a rule.

    `minutes_over` counts the minutes of each model in which the share of arrived requests within
    both targets was below its attainment.
    """

    gpu_hours: float
    minutes_over: int
    kept: int
    requests: int

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.gpu_hours + other.gpu_hours,
            self.minutes_over + other.minutes_over,
            self.kept + other.kept,
            self.requests + other.requests,
        )

    @property
    def attainment(self) -> float:
        """Return the share of requests within both targets."""
        return self.kept / self.requests if self.requests else 1.0


def replay(
    days: Sequence[Day], rule: Rule, first: Engines, minutes: int, gpus: int = GPUS
) -> Outcome:
    """Simulate the models' days on a number of GPUs, starting with the `first` engines."""
    models = [ModelTruth(day, *engines) for day, engines in zip(days, first, strict=True)]
    for minute in range(minutes):
        _order(models, rule.desired(minute, models), minute, gpus)
        for model in models:
            model.minute(minute)
    found = Outcome(0.0, 0, 0, 0)
    for model in models:
        hours = (model.prefill.gpu_minutes + model.decode.gpu_minutes) / 60
        for minute in range(minutes, minutes + _ENDING_MINUTES):
            model.minute(minute)
        kept = model.within_targets()
        at = (model.day.arrivals.seconds // 60).astype(np.int64)
        came = np.bincount(at, minlength=minutes)
        share = np.bincount(at, kept, minutes) / np.maximum(came, 1)
        over = (came > 0) & (share < model.day.served.targets.attainment)
        found += Outcome(hours, int(over.sum()), int(kept.sum()), len(kept))
    return found


def _order(models: Sequence[ModelTruth], desired: Engines, minute: int, gpus: int) -> None:
    """Give up surplus engines, then order missing ones in turn while there are GPUs."""
    pools: list[tuple[EnginePool, int]] = []
    for model, (prefill, decode) in zip(models, desired, strict=True):
        pools += [(model.prefill, max(1, prefill)), (model.decode, max(1, decode))]
    for pool, engines in pools:
        pool.order(min(engines, pool.ordered), minute)
    grows = True
    while grows:
        grows = False
        for pool, engines in pools:
            free = gpus - sum(each.held_gpus for each, _ in pools)
            if pool.ordered < engines and pool.gpus <= free:
                pool.order(pool.ordered + 1, minute)
                grows = True
