"""Who says how many engines: ours, and those it is held against.

All decide from what the last minutes showed, all get the same GPUs, and all that know a capacity
know it from the same price table. Those that have a target get the best of `TARGETS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import numpy as np
from bench.plan.days import HISTORY_DAYS, MINUTES
from bench.plan.profile import LIKE, STEP_MINUTES, Lookahead, Profile, last_minute
from bench.plan.truth import LEAD_MINUTES, ModelTruth

from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.plan.bounds import PlanBounds
from disagg_cluster.planner.plan.gpu_plan import ModelPlan
from disagg_cluster.planner.plan.model_demand import ModelDemand, RunningEngines
from disagg_cluster.planner.plan.planner import plan
from disagg_cluster.planner.plan.schedule import PlanCosts, PlanTiming
from disagg_cluster.planner.plan.worker_option import block_needs
from disagg_exporter.model import Role

TARGETS = (0.4, 0.5, 0.6, 0.7)
SHORT_WEIGHTS = (9.0, 19.0)
_TOLERANCE = 0.1
_STABLE_MINUTES = 5

Engines = tuple[tuple[int, int], ...]
"""Prefill and decode engines of each model."""


class Rule(Protocol):
    """Anything that says each minute how many engines there should be."""

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """After so many minutes of the day."""


@dataclass(slots=True)
class Stabilized:
    """Kubernetes' HPA, at its defaults: rises at once, falls to the most wanted in five minutes.

    A change of less than a tenth is none.
    """

    last: list[list[int]] = field(default_factory=list)

    def settle(self, wanted: Sequence[float], present: Sequence[int]) -> list[int]:
        """What to have, from what would be just enough."""
        raw = [
            there if abs(of / there - 1) <= _TOLERANCE else max(1, ceil(of - 1e-9))
            for of, there in zip(wanted, present, strict=True)
        ]
        self.last = [*self.last[1 - _STABLE_MINUTES :], raw]
        return [
            max(of, min(there, max(each[number] for each in self.last)))
            for number, (of, there) in enumerate(zip(raw, present, strict=True))
        ]


def present(models: Sequence[ModelTruth]) -> list[int]:
    """Engines ordered, prefill and decode of each model in turn."""
    return [pool.ordered for model in models for pool in (model.prefill, model.decode)]


def pairs(flat: Sequence[int]) -> Engines:
    """Two by two."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@dataclass(slots=True)
class Reactive:
    """An HPA for each pool: prefill by its busy share, decode by requests of those it may hold.

    An engine holds as many as the targets allow at the lengths of late, which is more than any
    HPA's metric tells.
    """

    target: float
    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Usage over target."""
        usage: list[float] = []
        for number, model in enumerate(models):
            usage.append(model.prefill.serving * model.prefill_busy / self.target)
            batch = self.profile.batch(number, minute)
            usage.append(model.decode_requests / batch / self.target)
        return pairs(self.hpa.settle(usage, present(models)))


@dataclass(slots=True)
class FixedRatio:
    """HeteroScale's: decode engines by decode tokens a second, prefill engines in a fixed ratio.

    Both from a profile at the mean lengths of the days before.
    """

    target: float
    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Tokens over what an engine writes at most, times the target."""
        usage: list[float] = []
        for number, model in enumerate(models):
            tokens = last_minute(model.day, minute, "output_tokens")
            decode = tokens / self.profile.tokens_each[number] / self.target
            usage += [decode * self.profile.ratio[number], decode]
        return pairs(self.hpa.settle(usage, present(models)))


@dataclass(slots=True)
class TokenVelocity:
    """TokenScale's: tokens that come, over those that an engine of each stage lets through.

    Decode's velocity is that of the lengths of late, as by its buckets with lengths known
    beforehand. Its convertible decode engines are left out.
    """

    target: float
    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Of the last minute's arrivals."""
        usage: list[float] = []
        for number in range(len(models)):
            mix = self.profile.mix(number, minute, 1)
            for role in range(2):
                each = self.profile.rate_each(number, role, mix)
                usage.append(mix.requests_per_second / each / self.target)
        return pairs(self.hpa.settle(usage, present(models)))


@dataclass(slots=True)
class LastValue:
    """What the last five minutes would need by our capacity, as if they went on."""

    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Engines needed."""
        flat = []
        for number in range(len(models)):
            mix = self.profile.mix(number, minute, STEP_MINUTES)
            flat += [float(self.profile.engines(number, role, mix)) for role in range(2)]
        settled = self.hpa.settle(flat, present(models))
        return pairs([max(of, ceil(need)) for of, need in zip(settled, flat, strict=True)])


@dataclass(frozen=True, slots=True)
class Static:
    """The same engines all day, chosen when it was over: a quantile of what it needed."""

    engines: Engines

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Always these."""
        return self.engines


class Ours:
    """The plan, each minute anew."""

    def __init__(self, short_weight: float, profile: Profile, bounds: PlanBounds) -> None:
        self._costs = PlanCosts(short_weight)
        self._profile = profile
        self._bounds = bounds
        self._timing = PlanTiming(lead_seconds=60.0 * LEAD_MINUTES)
        self._ahead = Lookahead(profile)

    def wanted(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """As the first of its blocks has it."""
        found = plan(
            [self._demand(number, model, minute) for number, model in enumerate(models)],
            self._bounds,
            self._timing,
            minute * 60.0,
            self._costs,
        )
        flat = []
        for told in found.models:
            if not isinstance(told, ModelPlan):
                raise SystemExit(told.reason)
            flat += [role.engines_now for role in told.roles]
        return pairs(flat)

    def _demand(self, number: int, model: ModelTruth, minute: int) -> ModelDemand:
        served = model.day.served
        gpu_name = self._profile.options[number][0].gpu_name
        running = tuple(
            RunningEngines(role, gpu_name, served.gpus, pool.ordered)
            for role, pool in ((Role.PREFILL, model.prefill), (Role.DECODE, model.decode))
        )
        return ModelDemand(
            served.name,
            "default",
            self._ahead.paths(number, minute),
            self._profile.options[number],
            running,
            LIKE,
        )


def static_engines(profile: Profile, level: float) -> Engines:
    """A quantile of what each five minutes of the day needed, of each pool."""
    flat = []
    for day, options in zip(profile.days, profile.options, strict=True):
        loads = [
            of[HISTORY_DAYS * MINUTES :].reshape(-1, STEP_MINUTES).mean(axis=1)[None, :]
            for of in (day.requests, day.prompt_tokens, day.output_tokens)
        ]
        paths = LoadPaths(0.0, 60.0 * STEP_MINUTES, *loads)
        for option in options:
            needs = block_needs(option, paths, LIKE)
            if not isinstance(needs, np.ndarray):
                raise SystemExit(needs.reason)
            flat.append(int(np.quantile(needs[0], level, method="higher")))
    return pairs(flat)
