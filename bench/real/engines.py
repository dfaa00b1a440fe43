"""Aggregated engines whose steps cost what real GPUs were measured to take, and their loads."""

from __future__ import annotations

from bench.attribution.engines import NOISE
from bench.real.measured import SHAPES, MeasuredSteps

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.roofline import CostModel
from disagg_exporter.model import Role

WHEEL_MODELS = (
    ("meta-llama/Meta-Llama-3.1-8B", 1),
    ("meta-llama/Meta-Llama-3.1-70B", 4),
    ("openai/gpt-oss-120b", 1),
    ("Qwen/Qwen3-30B-A3B", 1),
)
WHEEL_GPUS = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200")
_KV_TOKENS = 400_000
_REQUESTS = 128


def priced(name: str, costs: CostModel, step_tokens: int = 2048) -> EngineSpec:
    """An aggregated engine whose steps stray from these prices."""
    return EngineSpec(
        name,
        Role.MIXED,
        (name,),
        noise=NOISE,
        costs=costs,
        kv_tokens=_KV_TOKENS,
        running_requests=_REQUESTS,
        step_tokens=step_tokens,
    )


def measured() -> list[EngineSpec]:
    """The engines whose mixed batches were measured."""
    return [
        priced(f"{shape.name}, {tokens}", MeasuredSteps(shape), tokens)
        for shape in SHAPES
        for tokens in (512, 2048)
    ]
