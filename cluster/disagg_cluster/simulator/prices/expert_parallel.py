"""Cost of a step of data-parallel ranks that share their experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_cluster.simulator.engine.roofline import BatchWork, Price
from disagg_cluster.simulator.prices.table_costs import ONE_TOKEN, TableCosts

_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class ExpertParallelCosts:
    """The cost of steps that ranks take together, each with an equal part of the experts.

    `costs` is of one rank: one GPU, with a part `experts`. Everything but the experts is computed
    by each rank alone, and the slowest sets the time. The experts of a rank get all ranks' tokens
    for them, equally many on each. Tokens travel to all ranks before the experts and their sums
    back after them; in a ring these are the two halves of an all-reduce.
    """

    costs: TableCosts

    def price(self, works: Sequence[BatchWork]) -> Price:
        """Return the price of a step with this work of each rank; an idle rank computes a token."""
        works = [work if work.context_tokens or work.writers else ONE_TOKEN for work in works]
        ranks, model = len(works), self.costs.roofline.model
        tokens = [work.context_tokens + work.writers for work in works]
        seconds = max(self.costs.rank_seconds(work) for work in works)
        active = model.experts_chosen(sum(tokens)) / ranks
        seconds += self.costs.experts_seconds(sum(tokens) / ranks, active)
        size_bytes = ranks * max(tokens) * model.hidden * _ACTIVATION_BYTES
        link = self.costs.roofline.gpu.link
        seconds += model.layers * link.all_reduce_seconds(size_bytes, ranks)
        return Price(seconds)
