"""Capacity of mixed engines, which compute prompt chunks in steps that also decode.

A prompt token makes a step that decodes N requests longer by c. A request thus takes
output · T(0, N) / N + prompt · c of engine time, and the rate of an engine is the inverse of that.
By Little's law (1961) a token takes ITL = N / (rate · output), which includes interference.
Prompts queue for the room left in the steps, as in a prefill pool whose steps all have the N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from disagg_cluster.planner.capacity.decode_pool import (
    SLOPE_STEP,
    DecodePool,
    batch_capacity,
    level_spread,
)
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
_LEAST_DEVIATION = 1e-6
_FAR = 1e3


class _Cache(NamedTuple):
    """Values by batch that do not depend on the number of engines: bisections reuse them."""

    prompt_seconds: dict[float, float]
    queues: dict[float, PromptQueue]


class _Level(NamedTuple):
    """Mean ITL of an engine's requests, and how it varies.

    `spread` is the standard deviation of the batch. `by_batch` and `by_prompts` are the relative
    standard deviations of the ITL that result from the batch and, for a request with an output of
    mean length, from prompts.
    """

    itl_seconds: float
    spread: float
    by_batch: float
    by_prompts: float


@dataclass(frozen=True, slots=True)
class MixedPool:
    """Engines that run both phases, serving requests with the lengths of a mix."""

    costs: EngineCosts
    mix: RequestMix
    targets: Targets
    _decoding: DecodePool = field(init=False, compare=False)
    _cache: _Cache = field(default_factory=lambda: _Cache({}, {}), init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decoding", DecodePool(self.costs, self.mix, self.targets))

    def rate(self, batch: float) -> float:
        """Requests per second that an engine completes at this mean batch."""
        decode_seconds = self._decoding.itl_seconds(batch) * self.mix.output_tokens
        return batch / (decode_seconds + batch * self._prompt_seconds(batch))

    def exceeded(self, batch: float, engines: int) -> Bound | None:
        """Return a limit that this mean batch per engine exceeds; None if the targets hold."""
        try:
            level = self._level(batch, engines)
            bound = self._decoding.full_limit(batch, level.spread)
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
        """The largest load that exceeds no limit."""
        # A step of one token cannot decode beside a prompt, but decodes half of the time.
        beside_prompt = max(self.costs.shape.max_num_batched_tokens - 1.0, 0.5)
        most = min(float(self.costs.shape.max_num_seqs), beside_prompt)
        return batch_capacity(self, engines, most, "max_num_seqs")

    def _step_seconds(self, tokens: float, attended: float, batch: float) -> float:
        return self.costs.step_seconds(tokens, attended, batch, batch * self.mix.context_tokens)

    def _prompt_seconds(self, batch: float) -> float:
        """Time that a prompt adds to the steps that compute it beside this many decodes.

        A step completes batch / output requests on average, and as many arrive; prompts that
        arrive during a step are computed together in the next one.
        """
        known = self._cache.prompt_seconds
        if batch not in known:
            known[batch] = self._compute_prompt_seconds(batch)
        return known[batch]

    def _compute_prompt_seconds(self, batch: float) -> float:
        mix = self.mix
        arriving = batch / mix.output_tokens
        together = arriving / -math.expm1(-arriving) if arriving > 0 else 1.0
        tokens = length_points(
            together * mix.prompt_tokens, mix.prompt_dispersion / together, _LENGTHS
        )
        room = max(1.0, self.costs.shape.max_num_batched_tokens - batch)
        without = self._decoding.itl_seconds(batch)
        added = 0.0
        for size in tokens.tolist():
            steps = max(1.0, size / room)
            attended = mix.cached_tokens + size / together / 2
            added += steps * (self._step_seconds(size / steps, attended, batch) - without)
        return max(0.0, added / len(tokens) / together)

    def _level(self, batch: float, engines: int) -> _Level:
        """ITL at a mean batch, with the fluctuation of the batch and of prompts computed beside it.

        Linear noise approximation (van Kampen) of d batch / dt = arrivals - batch / stay, with
        stay = output · ITL: an arrival adds itself and, through its prompt, prolongs all stays.
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
        arriving = mix.arrival_dispersion / engines + (1 - 1 / engines) * (1 - mix.arrival_share)
        by_prompts = swing * math.sqrt((arriving + mix.prompt_dispersion) / batch)
        return _Level(itl_seconds, spread, max(elasticity, 0.0) * spread / batch, by_prompts)

    def _slow_share(self, level: _Level) -> float:
        """The share of requests that miss the ITL target.

        ITLs follow a gamma distribution, computed by Wilson and Hilferty's cube root (1931). The
        shorter a request's output, the fewer prompts it meets, and the more their number varies.
        Very unequal ITLs count as no more unequal than makes the most of them slow, but at least
        as exponential ones: by their own deviation hardly one would be slow though their mean is.
        """
        mix = self.mix
        outputs = length_points(mix.output_tokens, mix.output_dispersion, _LENGTHS)
        deviations = level.by_batch + level.by_prompts * np.sqrt(mix.output_tokens / outputs)
        target = math.cbrt(min(self.targets.itl_seconds / level.itl_seconds, _FAR))
        # The share is largest at a deviation of three roots of what the target exceeds 1 by.
        most = max(1.0, 3 * math.sqrt(max(target - 1, 0.0)))
        third = np.clip(deviations, _LEAST_DEVIATION, most) / 3
        normal = NormalDist()
        beyond = (target - 1) / third + third
        return float(np.mean([normal.cdf(-each) for each in beyond.tolist()]))

    def _late_share(self, batch: float, engines: int) -> float:
        """The share of requests that miss the TTFT target."""
        queue = self._cache.queues.get(batch)
        if queue is None:
            queue = self._cache.queues[batch] = PromptQueue(
                self.mix,
                max(1.0, self.costs.shape.max_num_batched_tokens - batch),
                lambda tokens, attended: self._step_seconds(tokens, attended, batch),
            )
        # On average a request arrives in the middle of a step.
        within = self.targets.ttft_seconds - self._decoding.itl_seconds(batch) / 2
        return queue.late_share(engines * self.rate(batch), engines, within)


def mixed_pool(costs: EngineCosts, mix: RequestMix, targets: Targets) -> MixedPool:
    """Mixed engines with these costs, serving requests with these lengths.

    Raises:
        UnseenStepError: Step times are not known even for one request.
    """
    pool = MixedPool(costs, mix, targets)
    pool.rate(1.0)
    return pool


def mixed_capacity(
    costs: EngineCosts, mix: RequestMix, targets: Targets, engines: int
) -> PoolCapacity | UndecidedCapacity:
    """The largest load that mixed engines serve within both targets, batch limit and cache.

    Raises:
        ValueError: `engines` is below 1.
    """
    return capacity_of(lambda: mixed_pool(costs, mix, targets), engines)
