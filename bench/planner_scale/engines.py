"""What a thousand engines export now: their identity, and their step times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.planner_scale.recorded import ENGINES, ENGINES_A_NODE, MODELS

GPU_NAME = "NVIDIA H200"
_STEP_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_KV_TOKENS = 600_000.0
_RUNNING = 40.0
_CONTEXT_TOKENS = 1000.0


class EngineSample(NamedTuple):
    """One series as a node exports it, with its current value."""

    name: str
    labels: dict[str, str]
    value: float


def engine_samples(cluster: str) -> Iterator[EngineSample]:
    """Yield all families about steps, of engines with a GPU each, half of them prefill."""
    for number in range(ENGINES):
        node = {"cluster": cluster, "node": f"node-{number // ENGINES_A_NODE}"}
        role = ("prefill", "decode")[number // MODELS % 2]
        engine = {**node, "engine": f"engine-{number}"}
        gpu = f"GPU-{number}"
        yield EngineSample("disagg_gpu_info", {**node, "gpu": gpu, "gpu_name": GPU_NAME}, 1)
        labels = {"model_name": f"model-{number % MODELS}", "role": role}
        yield EngineSample("disagg_engine_info", {**engine, **labels}, 1)
        owner = {"gpu": gpu, "engine_namespace": "serving"}
        yield EngineSample("disagg_gpu_assignment_info", {**engine, **owner}, 1)
        # Like real engines of one kind, they differ a little.
        stray = 1 + number // MODELS % 5 / 50
        for name, label, point, value in _steps(role, stray):
            yield EngineSample(name, {**engine, label: point}, value)
        yield EngineSample("disagg_engine_kv_cache_tokens", engine, _KV_TOKENS)
        usage = _RUNNING * _CONTEXT_TOKENS / _KV_TOKENS
        yield EngineSample("disagg_engine_kv_cache_usage_ratio", engine, usage)
        yield EngineSample("disagg_engine_requests", {**engine, "state": "running"}, _RUNNING)


def _steps(role: str, stray: float) -> Iterator[tuple[str, str, str, float]]:
    """Yield family, label, its value and the sample for each point of an engine's curves."""
    prefill = {tokens: stray * (0.005 + 1e-4 * tokens) for tokens in _STEP_TOKENS}
    decode = {batch: stray * (0.005 + 2e-4 * batch) for batch in _BATCHES}
    if role == "prefill":
        for tokens, seconds in prefill.items():
            name = "disagg_engine_prefill_curve_tokens_per_second"
            yield name, "step_tokens", str(tokens), tokens / seconds
    else:
        for batch, seconds in decode.items():
            yield "disagg_engine_decode_curve_seconds", "batch", str(batch), seconds
    points = {"empty": stray * 0.005}
    points |= {f"prefill_{tokens}": seconds for tokens, seconds in prefill.items()}
    points |= {f"decode_{batch}": seconds for batch, seconds in decode.items()}
    for point, seconds in points.items():
        yield "disagg_engine_step_cost_seconds", "point", point, seconds
        yield "disagg_engine_step_cost_error_seconds", "point", point, 0.05 * seconds
