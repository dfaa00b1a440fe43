from __future__ import annotations

from typing import Any

import pytest

from disagg_exporter.capacity.compute_rates import (
    PEAKS,
    Peak,
    bytes_per_second,
    flops_per_second,
    peak_of,
    size_from_config,
)
from disagg_exporter.capacity.curves.utilization import Load
from disagg_exporter.model import ModelSize

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def test_the_size_of_a_known_model_matches_its_card() -> None:
    """8.03 billion parameters, of which the input embedding is read for single tokens only."""
    size = size_from_config(LLAMA_8B)

    assert size is not None
    assert size.layer_parameters + 2 * size.output_parameters == pytest.approx(8.03e9, rel=1e-3)
    assert size.bytes_per_parameter == 2
    assert size.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2


def test_heads_may_have_a_separate_size() -> None:
    """Qwen3-0.6B: 16 heads of 128 on a hidden size of 1024; 0.44 billion without embedding."""
    size = size_from_config(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 151936,
            "dtype": "bfloat16",
        }
    )

    assert size is not None
    assert size.layer_parameters == pytest.approx(0.44e9, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["MixtralForCausalLM"]},
        {"architectures": None},
        {"torch_dtype": "float32"},
        {"torch_dtype": None},
        {"quantization_config": {"quant_method": "fp8"}},
        {"hidden_size": None},
        {"hidden_size": "4096"},
        {"num_hidden_layers": 0},
        {"vocab_size": True},
        {"intermediate_size": 10**12},
    ],
)
def test_uncertain_models_have_no_size(change: dict[str, Any]) -> None:
    assert size_from_config({**LLAMA_8B, **change}) is None


def test_operations_and_bytes_are_those_of_the_tokens_and_steps() -> None:
    """10 steps a second, 5 of them writing one token of each of 20 requests."""
    size = ModelSize(1_000, 100, 2, 16)
    load = Load(
        *(500.0, 20.0, 0.25),
        decode_tokens_per_second=100.0,
        decode_steps_per_second=5.0,
        steps_per_second=10.0,
    )

    assert flops_per_second(load, size) == 2 * (1_000 * 600 + 100 * 100)
    assert bytes_per_second(load, size, kv_cache_tokens=400) == 2 * 1_100 * 10 + 16 * 100 * 5
    assert bytes_per_second(load, size, kv_cache_tokens=None) is None


def test_ranks_compute_separately() -> None:
    size = ModelSize(1_000, 100, 2, 16)
    load = Load(500.0, 0.0, 0.0, ranks=4)

    assert flops_per_second(load, size) == 4 * 2 * 1_000 * 500
    assert bytes_per_second(load, size, 400) is None


def test_only_whole_gpus_of_known_names_have_a_peak() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3") == Peak(989.4e12, 3.35e12)
    assert peak_of("NVIDIA H100 80GB HBM3", weight=3 / 7) is None
    assert peak_of("Simulated GPU") is None


def test_every_peak_has_a_plausible_balance() -> None:
    """Between 100 and 500 operations per byte: a figure with an extra digit is not."""
    for name, peak in PEAKS.items():
        assert 100 < peak.flops_per_second / peak.bytes_per_second < 500, name
