"""What prefill engines can take: prompts queue, and the tail of the time to first token counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_cluster.planner.capacity.bisection import largest
from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.pool_capacity import (
    Bound,
    PoolCapacity,
    UndecidedCapacity,
    capacity_of,
    check_pool,
)
from disagg_cluster.planner.capacity.prompt_queue import PromptQueue
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets

# Decode steps between prompt and first token: half of the one under way when a place is asked for,
# the one with which the KV's transfer begins, and the one that makes the token. Simulated: 2.5.
_DECODE_STEPS = 2.5
# Beyond it a higher TTFT target would allow hardly more.
_ALL_USED = 0.97


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Prefill engines of one kind, whose decode engines keep their own target."""

    queue: PromptQueue
    targets: Targets
    within_seconds: float

    def broken(self, requests_per_second: float, engines: int) -> Bound | None:
        """Say what gives out under this load; None where the targets hold."""
        if self.queue.utilization(requests_per_second, engines) >= 1:
            return "compute"
        late = self.queue.late_share(requests_per_second, engines, self.within_seconds)
        return "ttft" if late > self.targets.late_share else None

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load at which nothing gives out."""
        most = engines / self.queue.service_seconds
        load = largest(lambda rate: self.broken(rate, engines) is None, most)
        used = load / most
        return PoolCapacity(load, "compute" if used >= _ALL_USED else "ttft", used, 0.0)


def prefill_pool(
    costs: EngineCosts, mix: RequestMix, targets: Targets, transfer_seconds: float = 0.0
) -> PrefillPool:
    """Prefill engines with these costs under requests of these lengths.

    Raises:
        ValueError: The transfer takes no time from 0 up.
        UnseenStepError: What their steps take is not known.
    """
    check_pool(1, transfer_seconds)
    decode_seconds = (
        _DECODE_STEPS * targets.itl_seconds if math.isfinite(targets.itl_seconds) else 0
    )
    queue = PromptQueue(
        mix,
        costs.shape.max_num_batched_tokens,
        lambda tokens, attended: costs.step_seconds(tokens, attended, 0.0, 0.0),
    )
    return PrefillPool(queue, targets, targets.ttft_seconds - transfer_seconds - decode_seconds)


def prefill_capacity(
    costs: EngineCosts,
    mix: RequestMix,
    targets: Targets,
    engines: int,
    transfer_seconds: float = 0.0,
) -> PoolCapacity | UndecidedCapacity:
    """The largest load that so many prefill engines take within the TTFT target.

    Args:
        costs: Of each engine.
        mix: The requests; how many there are does not matter.
        targets: `ttft_seconds` includes the transfer, and decode steps until the first token: two
            and a half of `itl_seconds` (none where that is infinite).
        engines: How many.
        transfer_seconds: What the KV of a prompt takes to the decode engine.

    Raises:
        ValueError: No engine, or a negative transfer; says all.
    """
    check_pool(engines, transfer_seconds)
    return capacity_of(lambda: prefill_pool(costs, mix, targets, transfer_seconds), engines)
