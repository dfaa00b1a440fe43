"""What mixed engines can take: prompts in chunks beside requests that decode.

A prompt token makes steps c longer than they are with N requests alone. So a request takes
output · T(0, N) / N + prompt · c of its engine's time, which ends as many a second as that goes
into one, and by Little's law (1961) a token takes ITL = N / (rate · output): interference included.
Prompts queue for what the steps leave them, as in a prefill pool whose every step has the N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from disagg_cluster.planner.capacity.bisection import largest
from disagg_cluster.planner.capacity.decode_pool import SLOPE_STEP, DecodePool, level_spread
from disagg_cluster.planner.capacity.engine_costs import EngineCosts, UnseenStepError
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    PoolCapacity,
    UndecidedCapacity,
    capacity_of,
)
from disagg_cluster.planner.capacity.prompt_lengths import length_points
from disagg_cluster.planner.capacity.prompt_queue import PromptQueue
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets

_LENGTHS = 12
_MOST_USED = 0.99
_LEAST_STRAY = 1e-6
_FAR = 1e3


class _Known(NamedTuple):
    """What does not depend on the number of engines, by batch: bisections ask for the same ones."""

    prompt_seconds: dict[float, float]
    queues: dict[float, PromptQueue]


class _Level(NamedTuple):
    """The mean ITL of an engine's requests, and how far they stray from it.

    `spread` is the standard deviation of the batch; those of the ITL, over it, are `by_batch` and,
    of a request with an output of mean length, `by_prompts`.
    """

    itl_seconds: float
    spread: float
    by_batch: float
    by_prompts: float


@dataclass(frozen=True, slots=True)
class MixedPool:
    """Engines that do both phases, under requests of a mix's lengths."""

    costs: EngineCosts
    mix: RequestMix
    targets: Targets
    _decoding: DecodePool = field(init=False, compare=False)
    _known: _Known = field(default_factory=lambda: _Known({}, {}), init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decoding", DecodePool(self.costs, self.mix, self.targets))

    def rate(self, batch: float) -> float:
        """Requests that an engine ends in a second when so many decode in the mean."""
        writing = self._decoding.itl_seconds(batch) * self.mix.output_tokens
        return batch / (writing + batch * self._prompt_seconds(batch))

    def broken(self, batch: float, engines: int) -> Bound | None:
        """Say what gives out at this mean batch of each engine; None where the targets hold."""
        try:
            level = self._level(batch, engines)
            bound = self._decoding.room(batch, level.spread)
            if bound is not None:
                return bound
            slow = self._slow_share(level)
            if slow > self.targets.late_share:
                return "itl"
            late = self._late_share(batch, engines)
            if slow + late <= self.targets.late_share:
                return None
            return "ttft" if late > slow else "itl"
        except UnseenStepError:
            return "unseen"

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load at which nothing gives out."""
        most = min(self.costs.shape.max_num_seqs, self.costs.shape.max_num_batched_tokens - 1.0)
        batch = largest(lambda level: self.broken(level, engines) is None, most)
        bound = self.broken(batch * 1.01 + 1e-6, engines) or "max_num_seqs"
        if not batch:
            return PoolCapacity(0.0, bound, 0.0, 0.0)
        rate = self.rate(batch)
        used = rate / max(rate, self.rate(most))
        return PoolCapacity(engines * rate, bound, used, batch)

    def _step_seconds(self, tokens: float, attended: float, batch: float) -> float:
        return self.costs.step_seconds(tokens, attended, batch, batch * self.mix.context_tokens)

    def _prompt_seconds(self, batch: float) -> float:
        """By how much a prompt makes the steps longer that compute it beside so many requests.

        A step ends batch / output requests in the mean, and as many come; those that come in one
        are computed together in the next.
        """
        known = self._known.prompt_seconds
        if batch not in known:
            known[batch] = self._asked_prompt_seconds(batch)
        return known[batch]

    def _asked_prompt_seconds(self, batch: float) -> float:
        mix = self.mix
        coming = batch / mix.output_tokens
        together = coming / -math.expm1(-coming) if coming > 0 else 1.0
        tokens = length_points(
            together * mix.prompt_tokens, mix.prompt_dispersion / together, _LENGTHS
        )
        room = max(1.0, self.costs.shape.max_num_batched_tokens - batch)
        without = self._decoding.itl_seconds(batch)
        longer = 0.0
        for size in tokens.tolist():
            steps = max(1.0, size / room)
            attended = mix.cached_tokens + size / together / 2
            longer += steps * (self._step_seconds(size / steps, attended, batch) - without)
        return max(0.0, longer / len(tokens) / together)

    def _level(self, batch: float, engines: int) -> _Level:
        """Around a mean batch it fluctuates, and so do the prompts that come beside it.

        Linear noise (van Kampen) of d batch / dt = arrivals - batch / stay, stay = output · ITL: an
        arrival adds itself and, for its prompt, keeps all others longer.
        """
        mix, rate = self.mix, self.rate(batch)
        used = rate * self._prompt_seconds(batch)
        itl_seconds = self._decoding.itl_seconds(batch) / (1 - used)
        more = batch * SLOPE_STEP
        more_used = min(rate * self._prompt_seconds(more), _MOST_USED)
        rise = self._decoding.itl_seconds(more) / (1 - more_used) / itl_seconds
        elasticity = math.log(rise) / math.log(SLOPE_STEP)
        swing = used / (1 - used)
        gain = 1 + 2 * swing + swing**2 * (1 + mix.prompt_dispersion)
        spread = level_spread(batch, mix, engines, elasticity, gain)
        arriving = mix.arrival_dispersion / engines + (1 - 1 / engines) * (1 - mix.stay_alike)
        by_prompts = swing * math.sqrt((arriving + mix.prompt_dispersion) / batch)
        return _Level(itl_seconds, spread, max(elasticity, 0.0) * spread / batch, by_prompts)

    def _slow_share(self, level: _Level) -> float:
        """The share of requests that miss the ITL target.

        Gamma, by Wilson and Hilferty's cube root (1931). The fewer tokens a request writes, the
        fewer prompts it meets, and the more their number strays.
        """
        mix = self.mix
        outputs = length_points(mix.output_tokens, mix.output_dispersion, _LENGTHS)
        strays = level.by_batch + level.by_prompts * np.sqrt(mix.output_tokens / outputs)
        ninth = np.maximum(strays, _LEAST_STRAY) ** 2 / 9
        target = math.cbrt(min(self.targets.itl_seconds / level.itl_seconds, _FAR))
        normal = NormalDist()
        beyond = (target - 1 + ninth) / np.sqrt(ninth)
        return float(np.mean([normal.cdf(-each) for each in beyond.tolist()]))

    def _late_share(self, batch: float, engines: int) -> float:
        """The share of requests that miss the TTFT target."""
        queue = self._known.queues.get(batch)
        if queue is None:
            queue = self._known.queues[batch] = PromptQueue(
                self.mix,
                max(1.0, self.costs.shape.max_num_batched_tokens - batch),
                lambda tokens, attended: self._step_seconds(tokens, attended, batch),
            )
        # One comes in the middle of a step, in the mean.
        within = self.targets.ttft_seconds - self._decoding.itl_seconds(batch) / 2
        return queue.late_share(engines * self.rate(batch), engines, within)


def mixed_pool(costs: EngineCosts, mix: RequestMix, targets: Targets) -> MixedPool:
    """Mixed engines with these costs under requests of these lengths.

    Raises:
        UnseenStepError: What their steps take is not known, even for one request.
    """
    pool = MixedPool(costs, mix, targets)
    pool.rate(1.0)
    return pool


def mixed_capacity(
    costs: EngineCosts, mix: RequestMix, targets: Targets, engines: int
) -> PoolCapacity | UndecidedCapacity:
    """The largest load that so many mixed engines take within both targets, batch and cache.

    Raises:
        ValueError: No engine.
    """
    return capacity_of(lambda: mixed_pool(costs, mix, targets), engines)
