"""Capacity of prefill engines: prompts queue, and the tail of the time to first token decides."""

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

# Above this utilization a higher TTFT target hardly raises the load.
_ALL_USED = 0.97


def first_steps_seconds(itl_seconds: float, transfer_seconds: float) -> float:
    """Time that decode steps add to a prompt and its transfer until the first token.

    A request waits for half of the decode step in progress; the transfer starts with the next step,
    and one more step after the one in which it ends produces the token. A short transfer thus costs
    the rest of its step, a long one half a step on average.
    """
    return 1.5 * itl_seconds + max(itl_seconds - transfer_seconds, 0.5 * itl_seconds)


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Prefill engines of one kind, whose decode engines meet their own target."""

    queue: PromptQueue
    targets: Targets
    within_seconds: float

    def late_share(
        self, requests_per_second: float, engines: int, later_seconds: float = 0.0
    ) -> float:
        """Share of requests that miss the TTFT target, with `later_seconds` after their prompt."""
        within = self.within_seconds - later_seconds
        return self.queue.late_share(requests_per_second, engines, within)

    def exceeded(self, requests_per_second: float, engines: int) -> Bound | None:
        """Return the limit that this load exceeds; None if the targets hold."""
        if self.queue.utilization(requests_per_second, engines) >= 1:
            return "compute"
        late = self.late_share(requests_per_second, engines)
        return "ttft" if late > self.targets.late_share else None

    def capacity(self, engines: int) -> PoolCapacity:
        """The largest load that exceeds no limit."""
        most = engines / self.queue.service_seconds
        load = largest(lambda rate: self.exceeded(rate, engines) is None, most)
        used = load / most
        return PoolCapacity(load, "compute" if used >= _ALL_USED else "ttft", used, 0.0)


def prefill_pool(
    costs: EngineCosts,
    mix: RequestMix,
    targets: Targets,
    transfer_seconds: float = 0.0,
    sent_token_seconds: float = 0.0,
) -> PrefillPool:
    """Prefill engines with these costs, serving requests with these lengths.

    Args:
        costs: Step times of each engine.
        mix: The requests.
        targets: As for `prefill_capacity`.
        transfer_seconds: Transfer time of each prompt's KV.
        sent_token_seconds: Additional transfer time for each token of a prompt.

    Raises:
        ValueError: The transfer time is not a number from 0 up.
        UnseenStepError: Step times are not known.
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
    """The largest load that prefill engines serve within the TTFT target.

    Args:
        costs: Step times of each engine.
        mix: The requests; their rate does not matter.
        targets: `ttft_seconds` includes the transfer, and decode steps until the first token: 2 to
            2.5 times `itl_seconds` (none if that is infinite).
        engines: How many.
        transfer_seconds: Transfer time of a prompt's KV to the decode engine.

    Raises:
        ValueError: `engines` is below 1, or the transfer time negative; lists all problems.
    """
    check_pool(engines, transfer_seconds)
    return capacity_of(lambda: prefill_pool(costs, mix, targets, transfer_seconds), engines)
