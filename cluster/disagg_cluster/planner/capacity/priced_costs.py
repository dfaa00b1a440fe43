"""Costs of engines that have not run yet, from step-price tables or data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.simulator.engine.hardware import Gpu, Model
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Roofline
from disagg_cluster.simulator.prices.shipped import best_costs
from disagg_cluster.simulator.prices.table_costs import TableCosts

GAP_SECONDS = 0.0005
"""Host time before each step, as in the simulator."""
TABLE_ERROR = 0.07
"""Median error of the time per output token by table, over 22 measured deployments."""
SHEET_ERROR = 0.15
"""By data sheet it was 9 % in the median there, and up to a third on groups of 4 and 8 GPUs."""


@dataclass(frozen=True, slots=True)
class PricedCosts:
    """Steps priced by a cost model of the simulator, plus the host's gap before each.

    Attributes:
        costs: Cost model of the whole group of GPUs.
        shape: The engine.
        relative_error: Relative error of the prices.
        gap_seconds: Host time before each step.
    """

    costs: CostModel
    shape: EngineShape
    relative_error: float = TABLE_ERROR
    gap_seconds: float = GAP_SECONDS

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Time of a step, linear between whole numbers of requests."""
        tokens = round(prompt_tokens)
        pairs = round(tokens * max(attended_tokens, 0.0) + tokens / 2)
        context = round(tokens + max(0.0, attended_tokens - tokens / 2)) if tokens else 0
        context_each = decode_context_tokens / decodes if decodes else 0.0
        low = floor(decodes)
        part = decodes - low

        def price(requests: int) -> float:
            return self.costs.price(
                BatchWork(tokens, pairs, context, requests, requests * context_each)
            ).seconds

        seconds = price(low) if part < 1 else 0.0
        if part:
            seconds += part * (price(low + 1) - seconds)
        return seconds + self.gap_seconds


def priced_costs(
    gpu: Gpu,
    model: Model,
    gpus: int,
    *,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
) -> PricedCosts:
    """Costs of an engine from the shipped table of its GPU and model, else from data sheets.

    Raises:
        ValueError: The model leaves no room for a KV cache on this many GPUs.
        LinkError: There is no such group of GPUs.
    """
    costs = best_costs(gpu, model, gpus)
    shape = EngineShape(
        gpu_name=gpu.name,
        gpus=gpus,
        kv_tokens=float(Roofline(gpu, model, gpus).kv_tokens()),
        kv_bytes_per_token=float(model.kv_bytes_per_token),
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    error = TABLE_ERROR if isinstance(costs, TableCosts) else SHEET_ERROR
    return PricedCosts(costs, shape, error)
