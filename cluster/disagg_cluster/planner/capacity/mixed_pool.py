"""What mixed engines can take: prompts in chunks beside requests that decode.

A prompt token makes steps c longer than they are with N requests alone. So a request takes
output · T(0, N) / N + prompt · c of its engine's time, which ends as many a second as that goes
into one, and by Little's law (1961) a token takes ITL = N / (rate · output): interference included.
Prompts queue for what the steps leave them, as in a prefill pool whose every step has the N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.capacity.bisection import largest
from disagg_cluster.planner.capacity.decode_pool import DecodePool
from disagg_cluster.planner.capacity.engine_costs import EngineCosts, UnseenStepError
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    PoolCapacity,
    UndecidedCapacity,
    check_pool,
)
from disagg_cluster.planner.capacity.prompt_queue import PromptQueue
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets


@dataclass(frozen=True, slots=True)
class MixedPool:
    """Engines that do both phases, under requests of a mix's lengths."""

    costs: EngineCosts
    mix: RequestMix
    targets: Targets

    def rate(self, batch: float) -> float:
        """Requests that an engine ends in a second when so many decode in the mean."""
        writing = self._decoding.itl_seconds(batch) * self.mix.output_tokens
        return batch / (writing + batch * self.mix.prompt_tokens * self._token_seconds(batch))

    def broken(self, batch: float, engines: int) -> Bound | None:
        """Say what gives out at this mean batch of each engine; None where the targets hold."""
        try:
            bound = self._decoding.room(batch, engines)
            if bound is not None:
                return bound
            if self._high_itl_seconds(batch, engines) > self.targets.itl_seconds:
                return "itl"
            return self._prompts_late(batch, engines)
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

    @property
    def _decoding(self) -> DecodePool:
        return DecodePool(self.costs, self.mix, self.targets)

    def _step_seconds(self, tokens: float, attended: float, batch: float) -> float:
        return self.costs.step_seconds(tokens, attended, batch, batch * self.mix.context_tokens)

    def _token_seconds(self, batch: float) -> float:
        """By how much a prompt token makes steps longer that have so many requests."""
        room = self.costs.shape.max_num_batched_tokens - batch
        tokens = min(max(1.0, room), self.mix.prompt_tokens)
        with_prompt = self._step_seconds(tokens, self.mix.attended_tokens, batch)
        return max(0.0, with_prompt - self._decoding.itl_seconds(batch)) / tokens

    def _high_itl_seconds(self, batch: float, engines: int) -> float:
        """The ITL that the attainment's share of requests stays below.

        It is higher where more requests decode, and where more prompts come while one does.
        """
        mix, rate = self.mix, self.rate(batch)
        itl_seconds = batch / (rate * mix.output_tokens)
        higher = batch + self._decoding.spread(batch, engines)
        by_batch = higher / (self.rate(higher) * mix.output_tokens) - itl_seconds
        prompts = mix.arrival_dispersion * batch * (1 + mix.prompt_dispersion)
        by_prompts = (
            math.sqrt(prompts) * mix.prompt_tokens * self._token_seconds(batch) / mix.output_tokens
        )
        return itl_seconds + self.targets.deviations * math.hypot(by_batch, by_prompts)

    def _prompts_late(self, batch: float, engines: int) -> Bound | None:
        queue = PromptQueue(
            self.mix,
            max(1.0, self.costs.shape.max_num_batched_tokens - batch),
            lambda tokens, attended: self._step_seconds(tokens, attended, batch),
        )
        rate = engines * self.rate(batch)
        if queue.utilization(rate, engines) >= 1:
            return "compute"
        # One comes in the middle of a step, in the mean.
        within = self.targets.ttft_seconds - self._decoding.itl_seconds(batch) / 2
        late = queue.late_share(rate, engines, within)
        return "ttft" if late > self.targets.late_share else None


def mixed_capacity(
    costs: EngineCosts, mix: RequestMix, targets: Targets, engines: int
) -> PoolCapacity | UndecidedCapacity:
    """The largest load that so many mixed engines take within both targets, batch and cache.

    Raises:
        ValueError: No engine.
    """
    check_pool(engines)
    pool = MixedPool(costs, mix, targets)
    try:
        pool.rate(1.0)
    except UnseenStepError as error:
        return UndecidedCapacity(str(error))
    return pool.capacity(engines)
