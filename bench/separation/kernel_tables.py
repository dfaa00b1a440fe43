"""A worker's step times by the kernel tables of NVIDIA's `aiconfigurator-core`."""

from __future__ import annotations

from functools import cache, lru_cache
from math import floor
from typing import Any

from bench.separation.deployments import Kind, Parallel

# The tables' attention kernels differ by backend and system.
_ATTENTION: tuple[dict[str, str], ...] = (
    {"fmha_quant_mode": "bfloat16", "kvcache_quant_mode": "fp8"},
    {},
    {"fmha_quant_mode": "bfloat16", "kvcache_quant_mode": "bfloat16"},
)
# The share of memory that a backend leaves to weights, activations and cache together, or of the
# memory free beside weights to the cache: the backends' defaults.
_MEMORY = {"trtllm": ("of_free", 0.9)}
_MEMORY_ELSE = ("of_total", 0.9)
_NO_ROOM = "no KV budget"
_PROBE_TOKENS = 1024
_BULK_TOKENS = 8192


class KernelSteps:
    """Steps of one worker, composed of kernels; none of them mixed.

    Raises:
        LookupError: The tables lack a kernel that is needed.
    """

    def __init__(
        self, kind: Kind, backend: str, quantization: tuple[str, str], parallel: Parallel
    ) -> None:
        self.parallel = parallel
        self._engine = _engine(kind, backend, quantization, parallel)
        self._decode = lru_cache(maxsize=None)(self._ask_decode)
        self.kv_tokens = _kv_tokens(kind, backend, quantization, parallel)

    def decode_seconds(self, requests: float, context_tokens: float) -> float:
        """Return the time of a decode step by batch and context."""
        each = max(1.0, requests / self.parallel.attention_data)
        low, context = floor(each), round(context_tokens)
        seconds = self._decode(low, context)
        if each > low:
            seconds += (each - low) * (self._decode(low + 1, context) - seconds)
        return seconds

    def prompt_seconds(self, prompt_tokens: int) -> float:
        """Return a prompt's time on a prefill worker, in steps of 8,192 tokens."""
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
                    **_chosen(quantization),
                    **attention,
                )
            )
            engine.predict_prefill_latency(1, _PROBE_TOKENS)
            engine.predict_decode_latency(1, _PROBE_TOKENS)
        except Exception as error:  # noqa: BLE001 # the wheel raises errors of any type
            why = error
        else:
            return engine
    raise LookupError(f"{kind.model} on {kind.system} by {backend}: {why}")


def _kv_tokens(
    kind: Kind, backend: str, quantization: tuple[str, str], parallel: Parallel
) -> float | None:
    """Return the tokens that a worker's caches hold; None if the wheel does not know the model.

    Each rank of data-parallel attention has its own cache. 0 if the weights leave no room.
    """
    from aiconfigurator_core.sdk.memory import estimate_kv_cache

    memory, part = _MEMORY.get(backend, _MEMORY_ELSE)
    try:
        estimate = estimate_kv_cache(
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
            **_chosen(quantization),
            kvcache_quant_mode="fp8",
        )
    except Exception as error:  # noqa: BLE001 # the wheel raises errors of any type
        return 0.0 if _NO_ROOM in str(error) else None
    return float(estimate["total_kv_size_tokens"]) * parallel.attention_data


def _chosen(quantization: tuple[str, str]) -> dict[str, str]:
    """Return the modes to request: 8 bits are the model's own configuration, 4 bits a choice."""
    modes = {"gemm_quant_mode": quantization[0], "moe_quant_mode": quantization[1]}
    return {name: mode for name, mode in modes.items() if "fp4" in mode}
