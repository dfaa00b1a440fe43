"""The engines that could be run, mixed and separate, and the inputs missing to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.separation.kv_link import KvLink


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines that could be run, one for each tensor-parallel size and GPU name.

    Those of one GPU name and number of GPUs are the same hardware with the same prices in any role.
    """

    mixed: Sequence[EngineCosts]
    prefill: Sequence[EngineCosts]
    decode: Sequence[EngineCosts]


def missing_inputs(engines: Engines, link: KvLink | None) -> list[str]:
    """The inputs missing to compute a gain, in words; empty if nothing is missing."""
    missing = [
        f"what steps of {role} engines cost"
        for role, known in (
            ("mixed", engines.mixed),
            ("prefill", engines.prefill),
            ("decode", engines.decode),
        )
        if not known
    ]
    if link is None:
        missing.append("the bandwidth of the links that would carry KV")
    missing += [
        f"the KV bytes a token takes on {costs.shape.gpus} x {costs.shape.gpu_name}"
        for costs in engines.prefill
        if costs.shape.kv_bytes_per_token is None
    ]
    return missing
