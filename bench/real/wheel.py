"""Step costs on data-centre GPUs, by the kernel tables of NVIDIA's `aiconfigurator-core`.

The extra `bench` brings the wheel (Apache-2.0, offline). Its native model composes a step of
measured kernels; a mixed step is composed, too, and not measured as one.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from disagg_cluster.simulator.engine.roofline import BatchWork, Price


def native(
    model: str, system: str, gpus: int, backend: str = "vllm", *, expert_parallel: bool = True
) -> Any:
    """Return NVIDIA's native model of forward passes; raise if its tables lack something.

    Experts are distributed over the GPUs, or with `expert_parallel` off each is split over all.
    """
    import aiconfigurator_core

    config = {
        "schema_version": 1,
        "model_name": model,
        "system_name": system,
        "backend": backend,
        "backend_version": "current",
        "tp_size": gpus,
        "pp_size": 1,
        "attention_dp_size": 1,
        "moe_tp_size": 1 if expert_parallel else gpus,
        "moe_ep_size": gpus if expert_parallel else 1,
    }
    return aiconfigurator_core.RustForwardPassPerfModel.from_native(json.dumps(config))


def regression() -> Any:
    """Return NVIDIA's regression, untrained."""
    import aiconfigurator_core

    return aiconfigurator_core.RustForwardPassPerfModel.from_regression(json.dumps({}))


def silicon_sample() -> Path:
    """Return the path of the wheel's table of deployments measured end to end."""
    import aiconfigurator_core

    return Path(aiconfigurator_core.__file__).parent / "systems/silicon_sample.csv"


def forward_pass(work: BatchWork, prompts: int = 1, seconds: float = 0.0) -> dict[str, Any]:
    """Return a step as ForwardPassMetrics; `seconds` is how long it took."""
    read = max(work.context_kv_tokens - work.context_tokens, 0)
    scheduled = {
        "num_prefill_requests": prompts if work.context_tokens else 0,
        "sum_prefill_tokens": work.context_tokens,
        "var_prefill_length": 0.0,
        "sum_prefill_kv_tokens": read if work.context_tokens else 0,
        "num_decode_requests": work.writers,
        "sum_decode_kv_tokens": round(work.writers_kv_tokens),
        "var_decode_kv_tokens": 0.0,
    }
    queued = dict.fromkeys((name for name in scheduled if name != "sum_prefill_kv_tokens"), 0)
    return {
        "version": 1,
        "worker_id": "bench",
        "dp_rank": 0,
        "counter_id": 1,
        "wall_time": seconds,
        "scheduled_requests": scheduled,
        "queued_requests": queued,
    }


class WheelSteps:
    """The price of a step by the wheel's kernel tables; an empty step is one token of decode.

    Raises:
        Exception: The tables lack something that this model needs on this GPU.
    """

    def __init__(self, model: str, system: str, gpus: int, *, expert_parallel: bool = True) -> None:
        self._native = native(model, system, gpus, expert_parallel=expert_parallel)
        self._price = lru_cache(maxsize=100_000)(self._ask)
        self.price(BatchWork(256, 32_896, 256, 16, 4096))

    def price(self, work: BatchWork) -> Price:
        """Return the price of one step with this work."""
        if not work.context_tokens and not work.writers:
            work = BatchWork(writers=1, writers_kv_tokens=1)
        return self._price(work)

    def _ask(self, work: BatchWork) -> Price:
        metrics = json.dumps([forward_pass(work)])
        return Price(self._native.estimate_forward_pass_time_ms(metrics) / 1e3)
