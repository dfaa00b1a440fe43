"""The rules that set the number of engines: ours, and those it is compared with.

All decide by the last minutes, all get the same GPUs, and all that use a capacity take it from the
same price table. Rules with a target get the best of `TARGETS`.
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
    """Decides each minute how many engines there should be."""

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return the desired engines at a minute of the day."""


@dataclass(slots=True)
class Stabilized:
    """Kubernetes' HPA with defaults: up at once, down to the maximum desired in five minutes.

    Changes of less than a tenth are ignored.
    """

    last: list[list[int]] = field(default_factory=list)

    def settle(self, desired: Sequence[float], present: Sequence[int]) -> list[int]:
        """Return the engines to order, given those that would just suffice."""
        raw = [
            there if abs(of / there - 1) <= _TOLERANCE else max(1, ceil(of - 1e-9))
            for of, there in zip(desired, present, strict=True)
        ]
        self.last = [*self.last[1 - _STABLE_MINUTES :], raw]
        return [
            max(of, min(there, max(each[number] for each in self.last)))
            for number, (of, there) in enumerate(zip(raw, present, strict=True))
        ]


def present(models: Sequence[ModelTruth]) -> list[int]:
    """Return the ordered engines, prefill and decode of each model in turn."""
    return [pool.ordered for model in models for pool in (model.prefill, model.decode)]


def pairs(flat: Sequence[int]) -> Engines:
    """Return a flat sequence as pairs."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@dataclass(slots=True)
class Reactive:
    """An HPA for each pool: prefill by its busy share, decode by its requests over its limit.

    That limit is what the targets allow at recent lengths, which is more than any HPA metric knows.
    """

    target: float
    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return usage over target."""
        usage: list[float] = []
        for number, model in enumerate(models):
            usage.append(model.prefill.serving * model.prefill_busy / self.target)
            batch = self.profile.batch(number, minute)
            usage.append(model.decode_requests / batch / self.target)
        return pairs(self.hpa.settle(usage, present(models)))


@dataclass(slots=True)
class FixedRatio:
    """HeteroScale's rule: decode engines by output tokens a second, prefill in a fixed ratio.

    Both use a profile at the mean lengths of the days before.
    """

    target: float
    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return tokens over an engine's highest rate times the target."""
        usage: list[float] = []
        for number, model in enumerate(models):
            tokens = last_minute(model.day, minute, "output_tokens")
            decode = tokens / self.profile.tokens_each[number] / self.target
            usage += [decode * self.profile.ratio[number], decode]
        return pairs(self.hpa.settle(usage, present(models)))


@dataclass(slots=True)
class TokenVelocity:
    """TokenScale's rule: arriving tokens over the tokens that an engine of each stage passes.

    Decode's velocity is that at recent lengths, as by its buckets with lengths known beforehand.
    Its convertible decode engines are left out.
    """

    target: float
    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return the engines for the last minute's arrivals."""
        usage: list[float] = []
        for number in range(len(models)):
            mix = self.profile.mix(number, minute, 1)
            for role in range(2):
                each = self.profile.rate_each(number, role, mix)
                usage.append(mix.requests_per_second / each / self.target)
        return pairs(self.hpa.settle(usage, present(models)))


@dataclass(slots=True)
class LastValue:
    """The engines that the load of the last five minutes needs by our capacity."""

    profile: Profile
    hpa: Stabilized = field(default_factory=Stabilized)

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return the engines needed."""
        flat = []
        for number in range(len(models)):
            mix = self.profile.mix(number, minute, STEP_MINUTES)
            flat += [float(self.profile.engines(number, role, mix)) for role in range(2)]
        settled = self.hpa.settle(flat, present(models))
        return pairs([max(of, ceil(need)) for of, need in zip(settled, flat, strict=True)])


@dataclass(frozen=True, slots=True)
class Static:
    """The same engines all day, chosen in hindsight: a quantile of what the day needed."""

    engines: Engines

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return the fixed engines."""
        return self.engines


class Ours:
    """The plan, made every minute."""

    def __init__(self, short_weight: float, profile: Profile, bounds: PlanBounds) -> None:
        self._costs = PlanCosts(short_weight)
        self._profile = profile
        self._bounds = bounds
        self._timing = PlanTiming(lead_seconds=60.0 * LEAD_MINUTES)
        self._ahead = Lookahead(profile)

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return the engines of the plan's first block."""
        found = plan(
            [self._demand(number, model, minute) for number, model in enumerate(models)],
            self._bounds,
            self._timing,
            minute * 60.0,
            self._costs,
        )
        flat = []
        for planned in found.models:
            if not isinstance(planned, ModelPlan):
                raise SystemExit(planned.reason)
            flat += [role.engines_now for role in planned.roles]
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
    """Return, for each pool, a quantile of the engines needed over five-minute blocks."""
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
