"""What steps of a worker take by the kernel tables of NVIDIA's `aiconfigurator-core`."""

from __future__ import annotations

from functools import cache, lru_cache
from math import floor
from typing import Any

from bench.separation.deployments import Kind, Parallel

# What the tables have of attention differs by backend and system.
_ATTENTION: tuple[dict[str, str], ...] = (
    {"fmha_quant_mode": "bfloat16", "kvcache_quant_mode": "fp8"},
    {},
    {"fmha_quant_mode": "bfloat16", "kvcache_quant_mode": "bfloat16"},
)
# What of its memory a backend leaves to weights, activations and the cache together, or of what is
# free beside weights to the cache: their own defaults.
_MEMORY = {"trtllm": ("of_free", 0.9)}
_MEMORY_ELSE = ("of_total", 0.9)
_NO_ROOM = "no KV budget"
_PROBE_TOKENS = 1024
_BULK_TOKENS = 8192


class KernelSteps:
    """Steps of one worker, put together from kernels; none of them mixed.

    Raises:
        LookupError: The tables lack something.
    """

    def __init__(
        self, kind: Kind, backend: str, quantization: tuple[str, str], parallel: Parallel
    ) -> None:
        self.parallel = parallel
        self._engine = _engine(kind, backend, quantization, parallel)
        self._decode = lru_cache(maxsize=None)(self._ask_decode)
        self.kv_tokens = _kv_tokens(kind, backend, quantization, parallel)

    def decode_seconds(self, requests: float, context_tokens: float) -> float:
        """What a step takes in which so many requests write, each with so many tokens behind it."""
        each = max(1.0, requests / self.parallel.attention_data)
        low, context = floor(each), round(context_tokens)
        seconds = self._decode(low, context)
        if each > low:
            seconds += (each - low) * (self._decode(low + 1, context) - seconds)
        return seconds

    def prompt_seconds(self, prompt_tokens: int) -> float:
        """What a prompt takes of a worker that computes prompts alone, in steps of 8,192 tokens."""
        prompts = max(1, _BULK_TOKENS // prompt_tokens)
        each_ms = self._engine.predict_prefill_latency(prompts, prompt_tokens) / prompts
        return float(each_ms) / 1e3 / self.parallel.attention_data

    def _ask_decode(self, requests: int, context_tokens: int) -> float:
        return float(self._engine.predict_decode_latency(requests, context_tokens)) / 1e3


@cache
def _engine(kind: Kind, backend: str, quantization: tuple[str, str], parallel: Parallel) -> Any:
    from aiconfigurator_core import AicEngine
    from aiconfigurator_core.sdk.engine import compile_engine

    why: Exception | None = None
    for attention in _ATTENTION:
        try:
            engine = AicEngine.from_spec(
                compile_engine(
                    kind.model,
                    kind.system,
                    backend,
                    tp_size=parallel.tensor,
                    attention_dp_size=parallel.attention_data,
                    moe_tp_size=parallel.expert_tensor,
                    moe_ep_size=parallel.expert,
                    **_asked(quantization),
                    **attention,
                )
            )
            engine.predict_prefill_latency(1, _PROBE_TOKENS)
            engine.predict_decode_latency(1, _PROBE_TOKENS)
        except Exception as error:  # noqa: BLE001 # the wheel raises whatever it likes
            why = error
        else:
            return engine
    raise LookupError(f"{kind.model} on {kind.system} by {backend}: {why}")


def _kv_tokens(
    kind: Kind, backend: str, quantization: tuple[str, str], parallel: Parallel
) -> float | None:
    """How many tokens the caches of a worker hold; None where the wheel does not know the model.

    Each rank of attention in data parallel has a cache of its own. 0 where the weights leave none.
    """
    from aiconfigurator_core.sdk.memory import estimate_kv_cache

    memory, part = _MEMORY.get(backend, _MEMORY_ELSE)
    try:
        told = estimate_kv_cache(
            kind.model,
            kind.system,
            backend,
            "current",
            max_num_tokens=_BULK_TOKENS,
            max_batch_size=1,
            memory_fraction_kind=memory,
            memory_fraction_value=part,
            tp_size=parallel.tensor,
            attention_dp_size=parallel.attention_data,
            moe_tp_size=parallel.expert_tensor,
            moe_ep_size=parallel.expert,
            **_asked(quantization),
            kvcache_quant_mode="fp8",
        )
    except Exception as error:  # noqa: BLE001 # the wheel raises whatever it likes
        return 0.0 if _NO_ROOM in str(error) else None
    return float(told["total_kv_size_tokens"]) * parallel.attention_data


def _asked(quantization: tuple[str, str]) -> dict[str, str]:
    """Eight bits are what the model's own configuration says, four are somebody's choice."""
    asked = {"gemm_quant_mode": quantization[0], "moe_quant_mode": quantization[1]}
    return {name: mode for name, mode in asked.items() if "fp4" in mode}
