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

    # Eight bits are what the model's own configuration says, four are somebody's choice.
    asked = {"gemm_quant_mode": quantization[0], "moe_quant_mode": quantization[1]}
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
                    **{name: mode for name, mode in asked.items() if "fp4" in mode},
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
