"""Capacity of decode engines, from their mean batch and the step time at that batch.

Little (1961): an engine that decodes N requests on average completes N / (output · ITL(N)) a
second. N fluctuates around that mean. For random arrivals that stay as long as their output takes,
a share g of the variance of N scales with the dispersion of arrivals, and the rest is chance
(G/G/inf; g = 1 if all stays are equal, 1/2 if they are exponential). A larger batch prolongs every
stay, so the variance is divided by 1 - e, where e is the elasticity of step time with respect to
batch. A router that balances k engines divides the pool's fluctuation by k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from disagg_cluster.planner.capacity.bisection import largest
from disagg_cluster.planner.capacity.engine_costs import EngineCosts, UnseenStepError
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    PoolCapacity,
    UndecidedCapacity,
    capacity_of,
)
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets

SLOPE_STEP = 1.05
_MOST_ELASTICITY = 0.9
# Every step has a part that does not depend on the batch.
_LEAST_FLOOR = 0.05


def level_spread(
    batch: float, mix: RequestMix, engines: int, elasticity: float, gain: float = 1.0
) -> float:
    """Standard deviation of the requests on one of several engines that a router balances.

    Args:
        batch: Mean number of requests on an engine.
        mix: The requests.
        engines: How many engines are balanced.
        elasticity: Relative increase of a request's stay over the relative increase of the batch.
        gain: Factor on the variance of arrivals, if each moves the batch by more than itself.
    """
    arriving = mix.arrival_dispersion * gain * mix.arrival_share
    damping = 1 - min(max(elasticity, 0.0), _MOST_ELASTICITY)
    return math.sqrt(batch * (arriving + 1 - mix.arrival_share) / damping / engines)


class BatchPool(Protocol):
    """Engines whose load is known from their mean batch."""

    def rate(self, batch: float) -> float:
        """Requests per second that an engine completes at this mean batch."""

    def exceeded(self, batch: float, engines: int) -> Bound | None:
        """Return a limit that this mean batch per engine exceeds; None if the targets hold."""


def batch_capacity(
    pool: BatchPool, engines: int, most_batch: float, otherwise: Bound
) -> PoolCapacity:
    """The load at the largest batch up to `most_batch` that exceeds no limit.

    `otherwise` is the bound if a slightly larger batch exceeds none either.
    """
    batch = largest(lambda level: pool.exceeded(level, engines) is None, most_batch)
    bound = pool.exceeded(batch * 1.01 + 1e-6, engines) or otherwise
    if not batch:
        return PoolCapacity(0.0, bound, 0.0, 0.0)
    rate = pool.rate(batch)
    try:
        used = rate / max(rate, pool.rate(most_batch))
    except UnseenStepError:
        used = batch / most_batch
    return PoolCapacity(engines * rate, bound, used, batch)


@dataclass(frozen=True, slots=True)
class DecodePool:
    """Decode engines of one kind, serving requests with the lengths of a mix."""

    costs: EngineCosts
    mix: RequestMix
    targets: Targets
    # By batch: bisections for different numbers of engines evaluate the same batches.
    _itl_seconds: dict[float, float] = field(default_factory=dict, init=False, compare=False)

    def itl_seconds(self, batch: float) -> float:
        """Time of a step with this batch, each request having the mean context."""
        known = self._itl_seconds.get(batch)
        if known is None:
            context_tokens = batch * self.mix.context_tokens
            known = self.costs.step_seconds(0.0, 0.0, batch, context_tokens)
            self._itl_seconds[batch] = known
        return known

    def spread(self, batch: float, engines: int) -> float:
        """Standard deviation of the requests on an engine around this mean."""
        rise = self.itl_seconds(batch * SLOPE_STEP) / self.itl_seconds(batch)
        return level_spread(batch, self.mix, engines, math.log(rise) / math.log(SLOPE_STEP))

    def full_limit(self, batch: float, spread: float) -> Bound | None:
        """Return the limit that at times leaves no room for the next request; None if none does.

        A router balances the number of requests, not the KV that they hold, so contexts differ
        between engines. The next request may wait behind one that needs more cache than it does.
        """
        shape, mix, deviations = self.costs.shape, self.mix, self.targets.deviations
        if batch + deviations * spread > shape.max_num_seqs:
            return "max_num_seqs"
        filled = math.sqrt(spread**2 + batch * mix.context_dispersion)
        waiting = min(1.0, batch) * (1 + mix.context_dispersion)
        contexts = max(1.0, batch + deviations * filled + waiting)
        if shape.kv_tokens is not None and contexts * mix.context_tokens > shape.kv_tokens:
            return "kv"
        return None

    def exceeded(self, batch: float, engines: int) -> Bound | None:
        """Return a limit that this mean batch per engine exceeds; None if the targets hold."""
        try:
            spread = self.spread(batch, engines)
            late_seconds = self.itl_seconds(batch + self.targets.deviations * spread)
            late = late_seconds > self.targets.itl_seconds
            return self.full_limit(batch, spread) or ("itl" if late else None)
        except UnseenStepError:
            return "unseen"

    @property
    def most_batch(self) -> float:
        """The largest mean batch that fits an engine's request limit and its KV cache."""
        shape = self.costs.shape
        if shape.kv_tokens is None:
            return float(shape.max_num_seqs)
        return min(float(shape.max_num_seqs), shape.kv_tokens / self.mix.context_tokens)

    def step_floor(self) -> float:
        """Share of a just full engine's step time that does not shrink with the batch.

        From a line through the step times at full and half batch; 1 if no batch meets the target.

        Raises:
            UnseenStepError: The step time at half batch is not known.
        """
        full = largest(self._within_target, self.most_batch)
        if not full:
            return 1.0
        half = self.itl_seconds(full / 2) / self.itl_seconds(full)
        return min(1.0, max(_LEAST_FLOOR, 2 * half - 1))

    def _within_target(self, batch: float) -> bool:
        try:
            return self.itl_seconds(batch) <= self.targets.itl_seconds
        except UnseenStepError:
            return False

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load that exceeds no limit."""
        return batch_capacity(self, engines, self.most_batch, "itl")

    def rate(self, batch: float) -> float:
        """Requests per second that an engine completes with this batch."""
        return batch / (self.mix.output_tokens * self.itl_seconds(batch))

    def itl_seconds_under(self, requests_per_second: float, most_batch: float) -> float:
        """Step time of an engine at this request rate, its batch capped at `most_batch`."""
        return self.itl_seconds(
            largest(lambda batch: self.rate(batch) <= requests_per_second, most_batch)
        )


def decode_pool(costs: EngineCosts, mix: RequestMix, targets: Targets) -> DecodePool:
    """Decode engines with these costs, serving requests with these lengths.

    Raises:
        UnseenStepError: Step times are not known even for one request.
    """
    pool = DecodePool(costs, mix, targets)
    pool.itl_seconds(1.0)
    return pool


def decode_capacity(
    costs: EngineCosts, mix: RequestMix, targets: Targets, engines: int
) -> PoolCapacity | UndecidedCapacity:
    """The largest load that decode engines serve within the ITL target, batch limit and cache.

    Raises:
        ValueError: `engines` is below 1.
    """
    return capacity_of(lambda: decode_pool(costs, mix, targets), engines)
