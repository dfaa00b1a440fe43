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

# Beyond it a higher TTFT target would allow hardly more.
_ALL_USED = 0.97


def first_steps_seconds(itl_seconds: float, transfer_seconds: float) -> float:
    """What decode steps add to a prompt and its transfer until the first token.

    Half of the step under way when a place is asked for, with the next one the transfer begins, and
    from the end of the step in which it ends one more makes the token. So a short transfer costs
    the rest of its step, a long one half a step in the mean.
    """
    return 1.5 * itl_seconds + max(itl_seconds - transfer_seconds, 0.5 * itl_seconds)


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Prefill engines of one kind, whose decode engines keep their own target."""

    queue: PromptQueue
    targets: Targets
    within_seconds: float

    def late_share(
        self, requests_per_second: float, engines: int, later_seconds: float = 0.0
    ) -> float:
        """The share of requests that miss the TTFT target if so much comes after their prompt."""
        within = self.within_seconds - later_seconds
        return self.queue.late_share(requests_per_second, engines, within)

    def broken(self, requests_per_second: float, engines: int) -> Bound | None:
        """Say what gives out under this load; None where the targets hold."""
        if self.queue.utilization(requests_per_second, engines) >= 1:
            return "compute"
        late = self.late_share(requests_per_second, engines)
        return "ttft" if late > self.targets.late_share else None

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load at which nothing gives out."""
        most = engines / self.queue.service_seconds
        load = largest(lambda rate: self.broken(rate, engines) is None, most)
        used = load / most
        return PoolCapacity(load, "compute" if used >= _ALL_USED else "ttft", used, 0.0)


def prefill_pool(
    costs: EngineCosts,
    mix: RequestMix,
    targets: Targets,
    transfer_seconds: float = 0.0,
    sent_token_seconds: float = 0.0,
) -> PrefillPool:
    """Prefill engines with these costs under requests of these lengths.

    Args:
        costs: Of each engine.
        mix: The requests.
        targets: As of `prefill_capacity`.
        transfer_seconds: Of each prompt's KV.
        sent_token_seconds: What that takes longer for each token of a prompt.

    Raises:
        ValueError: The transfer takes no time from 0 up.
        UnseenStepError: What their steps take is not known.
    """
    check_pool(1, transfer_seconds)
    itl_seconds = targets.itl_seconds if math.isfinite(targets.itl_seconds) else 0.0
    after_seconds = transfer_seconds + first_steps_seconds(itl_seconds, transfer_seconds)
    queue = PromptQueue(
        mix,
        costs.shape.max_num_batched_tokens,
        lambda tokens, attended: costs.step_seconds(tokens, attended, 0.0, 0.0),
        sent_token_seconds,
    )
    return PrefillPool(queue, targets, targets.ttft_seconds - after_seconds)


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
        targets: `ttft_seconds` includes the transfer, and decode steps until the first token, two
            to two and a half of `itl_seconds` (none where that is infinite).
        engines: How many.
        transfer_seconds: What the KV of a prompt takes to the decode engine.

    Raises:
        ValueError: No engine, or a negative transfer; says all.
    """
    check_pool(engines, transfer_seconds)
    return capacity_of(lambda: prefill_pool(costs, mix, targets, transfer_seconds), engines)
