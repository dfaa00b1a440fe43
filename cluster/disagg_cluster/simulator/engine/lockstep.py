"""Data-parallel ranks of one engine whose steps begin and end together.

Ranks that share experts wait for each other in every layer, so vLLM makes them step together; an
idle rank computes a dummy token.
"""

from __future__ import annotations

from collections.abc import Sequence as Values
from typing import Protocol

from disagg_cluster.simulator.engine.batch import Outcome, Sequence, StepBatch, apply
from disagg_cluster.simulator.engine.roofline import BatchWork, Price
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_exporter.model import SECOND_NS

_WAITING_WEIGHT = 4  # of `DPLBAsyncMPClient.get_core_engine_for_request` in vLLM 0.19


class LockstepCosts(Protocol):
    """Cost model for a step of several ranks."""

    def price(self, works: Values[BatchWork]) -> Price:
        """Return the price of a step with this work of each rank."""


class LockstepRanks:
    """The batch loops of an engine's ranks, in virtual time."""

    def __init__(
        self, ranks: Values[Scheduler], costs: LockstepCosts, *, gap_seconds: float = 0.0005
    ) -> None:
        """Set the ranks, the costs of their steps, and the host's time before each."""
        self.ranks = tuple(ranks)
        self._costs = costs
        self._gap_seconds = gap_seconds
        self._given = [0] * len(self.ranks)

    def submit(self, sequence: Sequence) -> None:
        """Submit a request to the rank with the fewest, waiting ones counted four times."""

        def load(number: int) -> int:
            state = self.ranks[number].state()
            return _WAITING_WEIGHT * (state.waiting + self._given[number]) + state.running

        chosen = min(range(len(self.ranks)), key=load)
        self._given[chosen] += 1
        self.ranks[chosen].submit(sequence)

    def step(self, now_ns: int) -> list[Outcome]:
        """Take one step and return its results, rank by rank; nothing if none has work.

        It ends at `ended_ns` of the outcomes.
        """
        batches = [rank.schedule(now_ns) for rank in self.ranks]
        self._given = [0] * len(self.ranks)
        if not any(batches):
            return []
        works = [BatchWork() if batch is None else batch.work() for batch in batches]
        length_ns = max(1, round(self._costs.price(works).seconds * SECOND_NS))
        period_ns = length_ns + round(self._gap_seconds * SECOND_NS)
        return [
            self._end(rank, batch, now_ns + period_ns, length_ns, period_ns)
            for rank, batch in zip(self.ranks, batches, strict=True)
            if batch is not None
        ]

    def _end(
        self, rank: Scheduler, batch: StepBatch, ended_ns: int, length_ns: int, period_ns: int
    ) -> Outcome:
        outcome = apply(
            batch, rank.cache, ended_ns=ended_ns, count=1, length_ns=length_ns, period_ns=period_ns
        )
        if outcome.finished:
            rank.end(outcome.finished)
        return outcome
