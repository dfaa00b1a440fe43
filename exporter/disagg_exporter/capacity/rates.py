"""What an engine computes and reads a second, by the size of its model."""

from __future__ import annotations

from disagg_exporter.capacity.curves.utilization import Load
from disagg_exporter.model import ModelSize


def flops_per_second(load: Load, size: ModelSize) -> float:
    """Return the operations of a transformer's matrices: two for each parameter and token.

    The output layer is computed for tokens that are written. Attention is left out, so this is a
    lower bound, the more so the longer the contexts are.
    """
    tokens = load.prefill_tokens_per_second + load.decode_tokens_per_second
    return (2.0 * load.ranks) * (
        size.layer_parameters * tokens + size.output_parameters * load.decode_tokens_per_second
    )


def bytes_per_second(load: Load, size: ModelSize, kv_cache_tokens: float | None) -> float | None:
    """Return what is read: all weights once a step, and the cache in use once a decode step.

    None where the size of the cache is not known, and of several data-parallel ranks, which have
    caches of their own.
    """
    if kv_cache_tokens is None or load.ranks > 1:
        return None
    weights = size.bytes_per_parameter * (size.layer_parameters + size.output_parameters)
    cache = size.kv_bytes_per_token * kv_cache_tokens * load.kv_usage_ratio
    return weights * load.steps_per_second + cache * load.decode_steps_per_second
