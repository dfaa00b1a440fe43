"""Operations and bytes per second by the size of a model, and the peaks of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_exporter.capacity.curves.utilization import Load
from disagg_exporter.model import ModelSize

DENSE = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Architectures with grouped-query attention and one gated MLP per layer, all of it used."""
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2}
_NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


def size_from_config(config: Mapping[str, object]) -> ModelSize | None:
    """Return the size of a dense 16-bit model; None for any other, or if a value is missing.

    Norms and biases are left out: less than a thousandth.
    """
    architectures = config.get("architectures")
    dtype = config.get("torch_dtype", config.get("dtype"))
    if (
        not isinstance(architectures, list)
        or not DENSE.intersection(map(str, architectures))
        or str(dtype) not in _DTYPE_BYTES
        or config.get("quantization_config") is not None
    ):
        return None
    figures = [_count(config, name) for name in _NEEDED]
    if any(figure is None for figure in figures):
        return None
    hidden, layers, heads, inner, vocabulary = (figure or 0 for figure in figures)
    kv_heads = _count(config, "num_key_value_heads") or heads
    head = _count(config, "head_dim") or hidden // heads
    layer = 2 * hidden * head * (heads + kv_heads) + 3 * hidden * inner
    bytes_each = _DTYPE_BYTES[str(dtype)]
    return ModelSize(
        layer_parameters=layers * layer,
        output_parameters=vocabulary * hidden,
        bytes_per_parameter=bytes_each,
        kv_bytes_per_token=2 * layers * kv_heads * head * bytes_each,
    )


def _count(config: Mapping[str, object], name: str) -> int | None:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value < 10**9 else None


@dataclass(frozen=True, slots=True)
class Peak:
    """`flops_per_second` counts dense BF16 operations, half of the sparse figure of data sheets."""

    flops_per_second: float
    bytes_per_second: float


PEAKS = {
    # NVIDIA H100 Tensor Core GPU data sheet, 2023: SXM, PCIe.
    "NVIDIA H100 80GB HBM3": Peak(989.4e12, 3.35e12),
    "NVIDIA H100 PCIe": Peak(756e12, 2.0e12),
    # NVIDIA H200 Tensor Core GPU data sheet, 2024: SXM.
    "NVIDIA H200": Peak(989.4e12, 4.8e12),
    # NVIDIA DGX B200 data sheet, 2024: an eighth of the system's 36 sparse PFLOPS and 64 TB/s.
    "NVIDIA B200": Peak(2250e12, 8.0e12),
    # NVIDIA A100 Tensor Core GPU data sheet, 2021 (40 GB: 2020).
    "NVIDIA A100-SXM4-80GB": Peak(312e12, 2.039e12),
    "NVIDIA A100 80GB PCIe": Peak(312e12, 1.935e12),
    "NVIDIA A100-SXM4-40GB": Peak(312e12, 1.555e12),
    # NVIDIA L40S data sheet, 2023; NVIDIA L4 data sheet, 2023.
    "NVIDIA L40S": Peak(362e12, 0.864e12),
    "NVIDIA L4": Peak(121e12, 0.3e12),
}


def peak_of(gpu_name: str, weight: float = 1.0) -> Peak | None:
    """Return the peak of a whole GPU; None for MIG instances (their shares of it differ)."""
    return PEAKS.get(gpu_name) if weight == 1.0 else None


def flops_per_second(load: Load, size: ModelSize) -> float:
    """Return the operations of a transformer's matrices: two per parameter and token.

    The output layer is computed for generated tokens only. Attention is left out, so this is a
    lower bound, and a looser one the longer the contexts are.
    """
    tokens = load.prefill_tokens_per_second + load.decode_tokens_per_second
    return (2.0 * load.ranks) * (
        size.layer_parameters * tokens + size.output_parameters * load.decode_tokens_per_second
    )


def bytes_per_second(load: Load, size: ModelSize, kv_cache_tokens: float | None) -> float | None:
    """Return the bytes read: all weights once per step, and the cache in use once per decode step.

    None where the size or use of the cache is not known, and for several data-parallel ranks, which
    have separate caches.
    """
    if kv_cache_tokens is None or load.kv_usage_ratio is None or load.ranks > 1:
        return None
    weights = size.bytes_per_parameter * (size.layer_parameters + size.output_parameters)
    cache = size.kv_bytes_per_token * kv_cache_tokens * load.kv_usage_ratio
    return weights * load.steps_per_second + cache * load.decode_steps_per_second
