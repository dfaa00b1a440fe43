"""A kind of worker that could serve a role, and how many of them a load needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.capacity.engine_costs import EngineCosts, UnseenStepError
from disagg_cluster.planner.capacity.engine_pools import engine_pool
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity, UndecidedCapacity
from disagg_cluster.planner.capacity.request_mix import (
    LENGTH_GRID,
    MOST_TOKENS,
    RequestMix,
    grid_mixes,
    with_alike_lengths,
)
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_series import Floats
from disagg_exporter.model import Role

# Between these, the capacity of one engine is nearly linear in the logarithm of their number.
_ENGINES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_LENGTH_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_LENGTHS = ("prompt_tokens", "output_tokens", "cached_tokens")
_MOST_ERROR = 0.5
_LEAST_OF_RATE = 0.01
# Steps of the length grid: down to four tenths of the length.
_MOST_SHORTER = 4
_MOST_KNOWN = 4096
Counts = NDArray[np.int64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class EngineCurve:
    """Requests per second that engines serve within the targets, by their number, for one mix.

    `rates[k - 1]` is for k engines. Requests of other lengths count by the engine time that they
    take: `prompt_seconds` by the length of the prompt, and for each output token `token_seconds` by
    the context; times that do not concern the role are 0. `meets_targets` is False if the curve
    stands in for requests that are too long for the targets.
    """

    mix: RequestMix
    limit: str
    rates: Floats
    prompts: Floats
    prompt_seconds: Floats
    contexts: Floats
    token_seconds: Floats
    meets_targets: bool = True

    def engines(self, requests: Floats, prompt_tokens: Floats, output_tokens: Floats) -> Counts:
        """How many engines serve these loads, all per second; 0 where there is no load."""
        some = np.where(requests > 0, requests, np.inf)
        equal = requests * self._seconds(prompt_tokens / some, output_tokens / some)
        equal /= self._seconds(np.array(self.mix.prompt_tokens), np.array(self.mix.output_tokens))
        most = len(self.rates)
        tried = np.searchsorted(self.rates, equal * (1 - 1e-9)) + 1
        beyond = np.ceil(equal * (1 - 1e-9) * most / self.rates[-1])
        found = np.where(tried > most, np.maximum(beyond, tried), tried)
        return np.where(equal > 0, found, 0).astype(np.int64)

    def rates_for(self, mix: RequestMix) -> Floats:
        """The rates for requests of other mean lengths, by the engine time that these take."""
        own, other = (
            self._seconds(np.array(of.prompt_tokens), np.array(of.output_tokens), of.cached_tokens)
            for of in (self.mix, mix)
        )
        rates: Floats = self.rates * own / other
        return rates

    def _seconds(
        self, prompt_length: Floats, output_length: Floats, cached: float | None = None
    ) -> Floats:
        generated = output_length * (1 + self.mix.output_dispersion) / 2
        cached = self.mix.cached_tokens if cached is None else cached
        context = self.mix.context_factor * (cached + prompt_length + generated)
        seconds: Floats = _interpolated(prompt_length, self.prompts, self.prompt_seconds)
        return seconds + output_length * _interpolated(context, self.contexts, self.token_seconds)


@dataclass(frozen=True, slots=True)
class UnreachableTargets(UndecidedCapacity):
    """No number of engines meets the targets."""


class WorkerOption:
    """Workers of one role on GPUs of one name, in engines of one size.

    It caches the curves that it computes, which is most of the work of a plan; so keep it.

    Args:
        role: Prefill, decode or mixed.
        costs: Step times of one engine.
        targets: The targets to meet.
        transfer_seconds: Transfer time of a prompt's KV to the decode engine.
    """

    def __init__(
        self, role: Role, costs: EngineCosts, targets: Targets, transfer_seconds: float = 0.0
    ) -> None:
        if role not in (Role.PREFILL, Role.DECODE, Role.MIXED):
            raise ValueError(f"workers of role {role} serve no requests")
        self.role = role
        self.costs = costs
        self.targets = targets
        self.gpu_name = costs.shape.gpu_name
        self.gpus = costs.shape.gpus
        self._transfer_seconds = transfer_seconds
        self._curves: dict[RequestMix, EngineCurve | UndecidedCapacity] = {}
        # Rounds a few minutes apart ask for the same mixes again and again.
        self._known = lru_cache(_MOST_KNOWN)(self._on_grid)

    def curve(self, mix: RequestMix) -> EngineCurve | UndecidedCapacity:
        """The curve for a mix, between those for lengths on a coarse grid around its own.

        So lengths that vary a little change the number of engines little, wherever they lie.
        """
        if self.role is Role.PREFILL:
            # It does not depend on the length of outputs, and holds a context only briefly.
            mix = replace(mix, output_tokens=1.0, context_factor=1.0)
        return self._known(mix)

    def _on_grid(self, mix: RequestMix) -> EngineCurve | UndecidedCapacity:
        weights = grid_mixes(mix)
        nearest = self._cached(next(iter(weights)))
        if isinstance(nearest, UndecidedCapacity):
            return nearest
        curves = [(self._cached(each), weight) for each, weight in weights.items()]
        known = [(each, weight) for each, weight in curves if isinstance(each, EngineCurve)]
        rates = _between([each.rates_for(mix) for each, _ in known], [of for _, of in known])
        return replace(
            nearest,
            mix=replace(nearest.mix, **{name: getattr(mix, name) for name in _LENGTHS}),
            rates=rates,
        )

    def _cached(self, key: RequestMix) -> EngineCurve | UndecidedCapacity:
        if key not in self._curves:
            found = self._computed(key)
            if isinstance(found, UnreachableTargets):
                found = self._for_shorter_prompts(key) or found
            self._curves[key] = found
        return self._curves[key]

    def _for_shorter_prompts(self, mix: RequestMix) -> EngineCurve | None:
        """The curve of the longest prompts that can meet the targets, if not much shorter.

        For a while prompts may be too long for their target with any number of engines. Engines
        that would meet it for shorter ones, by the time that these take, keep the queue from
        growing.
        """
        for shorter in range(1, _MOST_SHORTER + 1):
            prompt = max(1.0, mix.prompt_tokens / LENGTH_GRID**shorter)
            found = self._computed(replace(mix, prompt_tokens=prompt))
            if isinstance(found, EngineCurve):
                return replace(found, meets_targets=False)
        return None

    def _computed(self, mix: RequestMix) -> EngineCurve | UndecidedCapacity:
        try:
            pool = engine_pool(self.role, self.costs, mix, self.targets, self._transfer_seconds)
            found = [pool.capacity(engines) for engines in _ENGINES]
        except UnseenStepError as error:
            return UndecidedCapacity(str(error))
        each = np.array([pool.requests_per_second for pool in found]) / _ENGINES
        if not each[-1] > 0:
            return UnreachableTargets(
                f"no number of {self.role} engines on {self.gpus} x {self.gpu_name} holds the "
                f"targets for prompts of about {mix.prompt_tokens:,.0f} tokens: {found[-1].limit}"
            )
        counts = np.arange(1, _ENGINES[-1] + 1)
        rates = np.interp(np.log(counts), np.log(_ENGINES), each) * counts
        return EngineCurve(
            mix,
            found[-1].limit,
            np.maximum.accumulate(rates),
            *self._prompt_seconds(mix),
            *self._token_seconds(mix, found[-1]),
        )

    def _prompt_seconds(self, mix: RequestMix) -> tuple[Floats, Floats]:
        """Engine time of a prompt by its length, on an engine that never lacks prompts."""
        if self.role is Role.DECODE:
            return _no_seconds()
        most = self.costs.shape.max_num_batched_tokens

        def seconds(tokens: float) -> float:
            attended = replace(mix, prompt_tokens=max(1.0, tokens)).attended_tokens
            return tokens * self.costs.step_seconds(most, attended, 0, 0) / most

        return _sampled(seconds, mix.prompt_tokens)

    def _token_seconds(self, mix: RequestMix, pool: PoolCapacity) -> tuple[Floats, Floats]:
        """Engine time of an output token by its context, at the batch that the targets allow.

        If the cache is the limit, in proportion to the cache that a request takes.
        """
        if self.role is Role.PREFILL:
            return _no_seconds()
        batch = max(1.0, pool.batch)

        def seconds(context: float) -> float:
            return self.costs.step_seconds(0, 0, batch, batch * context) / batch

        context = mix.context_tokens
        if pool.bound == "kv":
            lengths = context * np.array(_LENGTH_FACTORS)
            return lengths, seconds(context) * lengths / context
        return _sampled(seconds, context)


def block_needs(
    option: WorkerOption, paths: LoadPaths, base_mix: RequestMix
) -> Counts | UndecidedCapacity:
    """Engines needed in each future and step, `[path, step]`.

    Args:
        option: The workers.
        paths: The futures, in steps of one decision each.
        base_mix: The requests apart from number and lengths: cached tokens, dispersions.
    """
    needs = np.zeros((paths.count, paths.steps), dtype=np.int64)
    errors = _capacity_errors(paths.count, option.costs.relative_error, option.role)[:, None]
    for mix, steps in _steps_by_mix(paths, base_mix).items():
        curve = option.curve(mix)
        if isinstance(curve, UndecidedCapacity):
            return curve
        loads = (paths.requests, paths.prompt_tokens, paths.output_tokens)
        needs[:, steps] = curve.engines(*(load[:, steps] * errors for load in loads))
    return needs


def step_mix(paths: LoadPaths, step: int, base_mix: RequestMix) -> RequestMix:
    """The mean request of all futures in a step; one of a token each if none arrives."""
    prompt, output = _mean_lengths(paths, np.array([step]))
    return replace(base_mix, prompt_tokens=float(prompt[0]), output_tokens=float(output[0]))


def _mean_lengths(paths: LoadPaths, steps: Indices) -> tuple[Floats, Floats]:
    """Mean tokens of the prompts and outputs of each step."""
    arriving = np.maximum(paths.requests[:, steps].sum(axis=0), np.finfo(float).tiny)
    with np.errstate(over="ignore"):  # by next to nothing: more than the most anyway
        prompt, output = (
            np.clip(tokens[:, steps].sum(axis=0) / arriving, 1.0, MOST_TOKENS)
            for tokens in (paths.prompt_tokens, paths.output_tokens)
        )
    return prompt, output


def _steps_by_mix(paths: LoadPaths, base_mix: RequestMix) -> dict[RequestMix, list[int]]:
    """The steps with any load, by a mix from which their mean requests hardly differ."""
    busy = np.flatnonzero(paths.requests.any(axis=0))
    found: defaultdict[RequestMix, list[int]] = defaultdict(list)
    for step, prompt, output in zip(busy, *_mean_lengths(paths, busy), strict=True):
        mix = replace(base_mix, prompt_tokens=float(prompt), output_tokens=float(output))
        found[with_alike_lengths(mix)].append(int(step))
    return found


def _capacity_errors(paths: int, relative_error: float, role: Role) -> Floats:
    """Error factor of capacity in each future: log-normal, in a separate random order by role."""
    normal = np.array([NormalDist().inv_cdf((path + 0.5) / paths) for path in range(paths)])
    order = np.random.default_rng(list(Role).index(role)).permutation(paths)
    errors: Floats = np.exp(min(relative_error, _MOST_ERROR) * normal[order])
    return errors


def _sampled(seconds: Callable[[float], float], about: float) -> tuple[Floats, Floats]:
    """Times at lengths around one, where step times are known; in proportion if hardly any are."""
    points = []
    for factor in _LENGTH_FACTORS:
        try:
            points.append((about * factor, seconds(about * factor)))
        except UnseenStepError:
            continue
    if len(points) < 2:
        return np.array([0.0, about]), np.array([0.0, 1.0])
    found = np.array(points)
    return found[:, 0], np.maximum.accumulate(found[:, 1])


def _between(rates: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Geometric mean, as rates may fall manifold towards the longest possible requests."""
    known = np.stack(rates)
    # A single rate of 0 would end the mean of any weights.
    known = np.maximum(known, np.maximum(_LEAST_OF_RATE * known.max(axis=0), np.finfo(float).tiny))
    found: Floats = np.exp(np.average(np.log(known), axis=0, weights=weights))
    return found


def _no_seconds() -> tuple[Floats, Floats]:
    return np.array([0.0, 1.0]), np.zeros(2)


def _interpolated(at: Floats, points: Floats, values: Floats) -> Floats:
    """Linear interpolation, continued beyond the last point as between the last two."""
    beyond = np.maximum(at - points[-1], 0.0)
    slope = (values[-1] - values[-2]) / (points[-1] - points[-2])
    found: Floats = np.interp(at, points, values) + beyond * slope
    return found
