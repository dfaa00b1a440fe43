"""How large a model is, by its `config.json`: what a token costs to compute and a step to read."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.model import ModelSize

DENSE = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Architectures of attention with grouped heads and one gated MLP a layer, all of it used."""
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2}
_NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


def size_from_config(config: Mapping[str, object]) -> ModelSize | None:
    """Return the size of a dense model in 16 bits; None of any other, and where a figure lacks.

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
