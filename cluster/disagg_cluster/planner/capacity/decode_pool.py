"""What decode engines can take: a level of requests, and the time of a step that has as many.

Little (1961): an engine on which N requests decode in the mean ends N / (output · ITL(N)) a second.
Around that mean N fluctuates. Of requests that come at random and stay as long as their output
takes, the variance of N is that of arrivals for a part g of it and of chance for the rest (G/G/inf;
g = 1 where all stay alike long, 1/2 for exponential stays), and more where more requests make each
other stay longer: over 1 - e, e the elasticity of a step's time by its batch. A router that keeps
k engines level divides the pool's fluctuation by k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
# No step is all batch.
_LEAST_FLOOR = 0.05


def level_spread(
    batch: float, mix: RequestMix, engines: int, elasticity: float, gain: float = 1.0
) -> float:
    """The standard deviation of the requests on an engine, of as many as are kept level.

    Args:
        batch: Their mean.
        mix: The requests.
        engines: How many.
        elasticity: How much longer, in proportion, more requests make each other stay.
        gain: By how much arrivals swing the level more than by their own number (variance).
    """
    arriving = mix.arrival_dispersion * gain * mix.stay_alike
    kept = 1 - min(max(elasticity, 0.0), _MOST_ELASTICITY)
    return math.sqrt(batch * (arriving + 1 - mix.stay_alike) / kept / engines)


@dataclass(frozen=True, slots=True)
class DecodePool:
    """Decode engines of one kind under requests of a mix's lengths."""

    costs: EngineCosts
    mix: RequestMix
    targets: Targets
    # By batch: bisections for any number of engines ask for the same ones.
    _itl_seconds: dict[float, float] = field(default_factory=dict, init=False, compare=False)

    def itl_seconds(self, batch: float) -> float:
        """What a step takes with so many requests, each with the context they have in the mean."""
        known = self._itl_seconds.get(batch)
        if known is None:
            context_tokens = batch * self.mix.context_tokens
            known = self.costs.step_seconds(0.0, 0.0, batch, context_tokens)
            self._itl_seconds[batch] = known
        return known

    def spread(self, batch: float, engines: int) -> float:
        """The standard deviation of the requests on an engine around this mean."""
        rise = self.itl_seconds(batch * SLOPE_STEP) / self.itl_seconds(batch)
        return level_spread(batch, self.mix, engines, math.log(rise) / math.log(SLOPE_STEP))

    def room(self, batch: float, spread: float) -> Bound | None:
        """Say what has no place for the next request at times; None where all has.

        A router levels requests, not the caches that they fill: contexts differ on each engine.
        Whoever comes may wait behind one that needs more than it does.
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

    def broken(self, batch: float, engines: int) -> Bound | None:
        """Say what gives out at this mean batch of each engine; None where the targets hold."""
        try:
            spread = self.spread(batch, engines)
            late_seconds = self.itl_seconds(batch + self.targets.deviations * spread)
            late = late_seconds > self.targets.itl_seconds
            return self.room(batch, spread) or ("itl" if late else None)
        except UnseenStepError:
            return "unseen"

    @property
    def most_batch(self) -> float:
        """The largest mean batch that an engine's limits and its cache have room for."""
        shape = self.costs.shape
        if shape.kv_tokens is None:
            return float(shape.max_num_seqs)
        return min(float(shape.max_num_seqs), shape.kv_tokens / self.mix.context_tokens)

    def step_floor(self) -> float:
        """Of the step of an engine that is just full, the part that does not shrink with the batch.

        By a line through what it takes full and half full; 1 where all batches take alike long.

        Raises:
            UnseenStepError: What an engine takes that is half full is not known.
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
        """The largest load at which nothing gives out."""
        most = self.most_batch
        batch = largest(lambda level: self.broken(level, engines) is None, most)
        bound = self.broken(batch * 1.01, engines) or "itl"
        if not batch:
            return PoolCapacity(0.0, bound, 0.0, 0.0)
        rate = self.rate(batch)
        try:
            used = rate / max(rate, self.rate(most))
        except UnseenStepError:
            used = batch / most
        return PoolCapacity(engines * rate, bound, used, batch)

    def rate(self, batch: float) -> float:
        """Requests that an engine ends in a second with this batch."""
        return batch / (self.mix.output_tokens * self.itl_seconds(batch))

    def itl_seconds_under(self, requests_per_second: float, most_batch: float) -> float:
        """What a step takes on an engine that gets so many, or has so large a batch at most."""
        return self.itl_seconds(
            largest(lambda batch: self.rate(batch) <= requests_per_second, most_batch)
        )


def decode_pool(costs: EngineCosts, mix: RequestMix, targets: Targets) -> DecodePool:
    """Decode engines with these costs under requests of these lengths.

    Raises:
        UnseenStepError: What their steps take is not known, even for one request.
    """
    pool = DecodePool(costs, mix, targets)
    pool.itl_seconds(1.0)
    return pool


def decode_capacity(
    costs: EngineCosts, mix: RequestMix, targets: Targets, engines: int
) -> PoolCapacity | UndecidedCapacity:
    """The largest load that so many decode engines take within the ITL target, batch and cache.

    Raises:
        ValueError: No engine.
    """
    return capacity_of(lambda: decode_pool(costs, mix, targets), engines)
