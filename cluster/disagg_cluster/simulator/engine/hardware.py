"""Properties of GPUs and models that determine the time, memory and power of a step."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.simulator.engine.links import (
    NVLINK_3,
    NVLINK_4,
    NVLINK_5,
    PCIE_4,
    PCIE_5,
    GpuLink,
)

_BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one GPU.

    `flops` are dense BF16 operations per second, `link` leads to the other GPUs of its node.
    `flash_attention` is the generation of attention kernels that vLLM runs on it: those of the
    second compute a mixed batch in one kernel, made for prompts.
    """

    name: str
    flops: float
    bytes_per_second: float
    memory_bytes: int
    link: GpuLink
    max_watts: float
    idle_watts: float
    max_clock_hertz: float
    idle_clock_hertz: float
    flash_attention: int = 3


@dataclass(frozen=True, slots=True)
class Model:
    """Size and costs of one model.

    `active_parameters` take part in the computation of each token. `dense_weight_bytes` are read in
    every step; of `expert_weight_bytes` only those experts that some token of the step chose.
    `attention_width` is heads × head size.
    """

    name: str
    active_parameters: float
    dense_weight_bytes: float
    layers: int
    hidden: int
    attention_width: int
    kv_bytes_per_token: int
    expert_weight_bytes: float = 0.0
    experts: int = 1
    experts_per_token: int = 1

    @property
    def heads_per_kv_head(self) -> float:
        """Number of attention heads that share the same keys and values."""
        kv_width = self.kv_bytes_per_token / (2 * self.layers * _BF16_BYTES)
        return self.attention_width / kv_width

    @property
    def weight_bytes(self) -> float:
        """Size of all weights in memory."""
        return self.dense_weight_bytes + self.expert_weight_bytes

    def weight_bytes_read(self, tokens: int) -> float:
        """Return the weight bytes that a step over `tokens` tokens reads, experts at random."""
        if not self.expert_weight_bytes:
            return self.dense_weight_bytes
        chosen = self.experts_chosen(tokens) / self.experts
        return self.dense_weight_bytes + self.expert_weight_bytes * chosen

    def experts_chosen(self, tokens: int) -> float:
        """Return the mean number of experts that `tokens` tokens choose, uniformly at random."""
        untouched = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - untouched)


def _kv_bytes(layers: int, kv_heads: int, head_size: int) -> int:
    return 2 * layers * kv_heads * head_size * _BF16_BYTES


H100 = Gpu(
    "NVIDIA H100 80GB HBM3", 989.4e12, 3.35e12, 80 * 10**9, NVLINK_4, 700.0, 70.0, 1.98e9, 345e6
)
"""SXM5. NVIDIA H100 data sheet and Hopper architecture paper (2023); idle power and clock are what
idle devices report.
"""

H200 = Gpu("NVIDIA H200", 989.4e12, 4.8e12, 141 * 10**9, NVLINK_4, 700.0, 75.0, 1.98e9, 345e6)
"""SXM5. NVIDIA H200 data sheet (2024)."""

B200 = Gpu("NVIDIA B200", 2250e12, 8e12, 180 * 10**9, NVLINK_5, 1000.0, 140.0, 1.965e9, 120e6)
"""SXM6. NVIDIA DGX B200 data sheet (2024), a GPU's share."""

A100 = Gpu(
    "NVIDIA A100-SXM4-80GB",
    *(312e12, 2.039e12, 80 * 10**9, NVLINK_3, 400.0, 60.0, 1.41e9, 210e6),
    flash_attention=2,
)
"""SXM4, 80 GB. NVIDIA A100 data sheet (2021)."""

L40S = Gpu(
    "NVIDIA L40S",
    *(362e12, 0.864e12, 48 * 10**9, PCIE_4, 350.0, 35.0, 2.52e9, 210e6),
    flash_attention=2,
)
"""PCIe Gen4 x16, no NVLink. NVIDIA L40S data sheet (2023)."""

RTX_PRO_6000 = Gpu(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    *(467.8e12, 1.792e12, 96 * 10**9, PCIE_5, 600.0, 30.0, 2.43e9, 180e6),
    flash_attention=2,
)
"""PCIe Gen5 x16, no NVLink. Peaks as NVIDIA's aiconfigurator states them for 2.43 GHz."""

LLAMA_8B = Model(
    "meta-llama/Llama-3.1-8B-Instruct",
    active_parameters=8.03e9,
    dense_weight_bytes=8.03e9 * _BF16_BYTES,
    layers=32,
    hidden=4096,
    attention_width=4096,
    kv_bytes_per_token=_kv_bytes(32, 8, 128),
)
"""BF16. The model's config.json: 32 layers, hidden 4096, 8 KV heads of 128."""

LLAMA_70B = Model(
    "meta-llama/Llama-3.3-70B-Instruct",
    active_parameters=70.6e9,
    dense_weight_bytes=70.6e9 * _BF16_BYTES,
    layers=80,
    hidden=8192,
    attention_width=8192,
    kv_bytes_per_token=_kv_bytes(80, 8, 128),
)
"""BF16. The model's config.json: 80 layers, hidden 8192, 8 KV heads of 128."""

QWEN3_32B = Model(
    "Qwen/Qwen3-32B",
    active_parameters=32.8e9,
    dense_weight_bytes=32.8e9 * _BF16_BYTES,
    layers=64,
    hidden=5120,
    attention_width=8192,
    kv_bytes_per_token=_kv_bytes(64, 8, 128),
)
"""BF16. The model's config.json: 64 layers, hidden 5120, 64 heads and 8 KV heads of 128."""

QWEN3_30B_A3B = Model(
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    active_parameters=3.3e9,
    dense_weight_bytes=1.5e9 * _BF16_BYTES,
    layers=48,
    hidden=2048,
    attention_width=4096,
    kv_bytes_per_token=_kv_bytes(48, 4, 128),
    expert_weight_bytes=29.0e9 * _BF16_BYTES,
    experts=128,
    experts_per_token=8,
)
"""BF16. The model's config.json: 48 layers, hidden 2048, 32 heads and 4 KV heads of 128, in each
layer 128 experts of 3 matrices of 2048 x 768, of which 8 are active.
"""

GPT_OSS_120B = Model(
    "openai/gpt-oss-120b",
    active_parameters=5.13e9,
    dense_weight_bytes=4.2e9,
    layers=36,
    hidden=2880,
    attention_width=4096,
    kv_bytes_per_token=_kv_bytes(36, 8, 64),
    expert_weight_bytes=61.1e9,
    experts=128,
    experts_per_token=4,
)
"""MXFP4 experts. OpenAI's gpt-oss model card (2508.10925): 116.8 B parameters, 5.13 B active, 128
experts of which 4 are active, a checkpoint of 60.8 GiB. Its sliding-window layers are priced as
full ones.
"""

GPUS = (A100, B200, H100, H200, L40S, RTX_PRO_6000)
MODELS = (LLAMA_8B, LLAMA_70B, QWEN3_32B, QWEN3_30B_A3B, GPT_OSS_120B)
