"""One day under one rule: engines follow what the rule says, within the GPUs there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from bench.plan.days import Day
from bench.plan.rules import Engines, Rule
from bench.plan.truth import EnginePool, ModelTruth

GPUS = 128
_ENDING_MINUTES = 10
"""So long the last requests have to end: one that takes longer is late whatever comes of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a day under a rule came to.

    `minutes_over` counts minutes of each model in which fewer of the requests that came were within
    both targets than its attainment asks for.
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
        """The share of requests within both targets."""
        return self.kept / self.requests if self.requests else 1.0


def replay(
    days: Sequence[Day], rule: Rule, first: Engines, minutes: int, gpus: int = GPUS
) -> Outcome:
    """Let the models' days pass on so many GPUs, beginning with some engines."""
    models = [ModelTruth(day, *engines) for day, engines in zip(days, first, strict=True)]
    for minute in range(minutes):
        _order(models, rule.wanted(minute, models), minute, gpus)
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


def _order(models: Sequence[ModelTruth], wanted: Engines, minute: int, gpus: int) -> None:
    """What is to go goes; what is to come comes in turn, as long as there are GPUs."""
    pools: list[tuple[EnginePool, int]] = []
    for model, (prefill, decode) in zip(models, wanted, strict=True):
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
