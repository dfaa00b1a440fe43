"""Duration of a step by data sheets: computing and reading, plus communication between GPUs.

The roofline of Williams, Waterman and Patterson (CACM 2009), applied to a transformer's step:
operations over peak against bytes over bandwidth, each at an efficiency that kernels reach, with a
round corner between the two. Noise, drift and faults lengthen or shorten it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from disagg_cluster.simulator.engine.hardware import Gpu, Model
from disagg_cluster.simulator.engine.links import LinkError
from disagg_exporter.model import SECOND_NS

_ACTIVATION_BYTES = 2
# The part of a GPU that an engine takes, and what of it activations and graphs need.
_ENGINE_MEMORY_RATIO, _WORKING_BYTES = 0.9, 4 * 10**9

# The p in (computeᵖ + memoryᵖ)^(1/p): fitted to prefill of 3 dense models on 6 GPUs, 16 to 4096
# tokens, composed of kernel times by `aiconfigurator-core` 0.12.0. Their step times are met within
# 4 % (root mean square) by 1.7, within 9 % by 1 and by 3, within 10 % by the longer of the two.
CORNER = 1.7

# Cost of reading the cache of requests that decode beside a prompt, relative to a separate step,
# for each head that shares a KV head: 1.5 of 4 heads, 2.7 of 8, median of 3,960 batches that
# LLMServingSim measured on an RTX PRO 6000 under FlashAttention-2 (256 prompt tokens or more).
_FA2_MIXED_FACTOR_PER_HEAD = 0.35


class BatchWork(NamedTuple):
    """The work of one step.

    `context_tokens` are computed in bulk; they attend to `context_pairs` (token, earlier token)
    pairs and read `context_kv_tokens` of cache. `writers` are decoding requests, which compute one
    token each and read `writers_kv_tokens` of cache together (the mean of several steps may be half
    a token).
    """

    context_tokens: int = 0
    context_pairs: int = 0
    context_kv_tokens: int = 0
    writers: int = 0
    writers_kv_tokens: float = 0


class Price(NamedTuple):
    """Duration of one step, and its utilization of the peaks of arithmetic and memory."""

    seconds: float
    compute_ratio: float = 0.0
    memory_ratio: float = 0.0

    def stretched(self, factor: float) -> Price:
        """Return the price of the same work in `factor` times the time."""
        if factor == 1.0:
            return self
        return Price(self.seconds * factor, self.compute_ratio / factor, self.memory_ratio / factor)


AT_REST = Price(0.0)


class CostModel(Protocol):
    """Cost model for steps."""

    def price(self, work: BatchWork) -> Price:
        """Return the price of one step with this work."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The cost of steps of one model on a tensor-parallel group of equal GPUs.

    For cases where no step has been measured. The efficiencies, and the least time of a layer's
    kernels, are round figures with which it meets 176 steps of 3 dense models on 6 GPUs, composed
    of kernel times by `aiconfigurator-core` 0.12.0, within 8.5 % (root mean square; 26 % for the
    sharp corner). `corner` is the power of the mean of computing and reading: the larger, the
    sharper. `clock_ratio` below 1 is a throttled group: it computes more slowly and reads at the
    same speed. Raises `LinkError` where there is no such group.
    """

    gpu: Gpu
    model: Model
    tensor_parallel: int = 1
    compute_efficiency: float = 0.8
    bandwidth_efficiency: float = 0.8
    layer_seconds: float = 25e-6
    clock_ratio: float = 1.0
    corner: float = CORNER

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise LinkError(f"no group has {self.tensor_parallel} GPUs")

    def price(self, work: BatchWork) -> Price:
        """Return the price of one step with this work."""
        peak_seconds, memory_seconds = self.least_seconds(work)
        compute_seconds = peak_seconds / (self.compute_efficiency * self.clock_ratio)
        reading_seconds = memory_seconds / self.bandwidth_efficiency
        power = self.corner
        corner = (compute_seconds**power + reading_seconds**power) ** (1 / power)
        exchange_seconds = self.exchange_seconds(padded(work.context_tokens + work.writers))
        least_seconds = self.layer_seconds * self.model.layers
        seconds = corner + self.mixed_seconds(work) + least_seconds + exchange_seconds
        return Price(seconds, peak_seconds / seconds, memory_seconds / seconds)

    def least_seconds(self, work: BatchWork) -> tuple[float, float]:
        """Return the seconds of arithmetic and of memory, each alone and at its peak."""
        tokens = padded(work.context_tokens + work.writers)
        return (
            self._operations(work, tokens) / (self.gpu.flops * self.tensor_parallel),
            self._bytes(work, tokens) / (self.gpu.bytes_per_second * self.tensor_parallel),
        )

    def exchange_seconds(self, tokens: int) -> float:
        """Return the time of two all-reduces per layer of all hidden states; 0 on one GPU."""
        size_bytes = tokens * self.model.hidden * _ACTIVATION_BYTES
        each_seconds = self.gpu.link.all_reduce_seconds(size_bytes, self.tensor_parallel)
        return 2 * self.model.layers * each_seconds

    def mixed_seconds(self, work: BatchWork) -> float:
        """Return the time of FlashAttention-2's repeated reads in mixed batches."""
        if self.gpu.flash_attention != 2 or not work.context_tokens:
            return 0.0
        factor = max(1.0, _FA2_MIXED_FACTOR_PER_HEAD * self.model.heads_per_kv_head)
        again_bytes = (factor - 1) * self.model.kv_bytes_per_token * work.writers_kv_tokens
        bandwidth = self.gpu.bytes_per_second * self.tensor_parallel * self.bandwidth_efficiency
        return again_bytes / bandwidth

    def kv_tokens(self) -> int:
        """Return the KV cache's size: the engine's share minus weights and working memory.

        0 where not even the weights fit.
        """
        share_bytes = self.gpu.memory_bytes * _ENGINE_MEMORY_RATIO - _WORKING_BYTES
        left_bytes = share_bytes * self.tensor_parallel - self.model.weight_bytes
        return max(0, int(left_bytes / self.model.kv_bytes_per_token))

    def _operations(self, work: BatchWork, tokens: int) -> float:
        """Two for each parameter and token; four for each layer, channel and attended pair."""
        pairs = work.context_pairs + work.writers_kv_tokens
        attention = 4.0 * self.model.layers * self.model.attention_width * pairs
        return 2.0 * self.model.active_parameters * tokens + attention

    def _bytes(self, work: BatchWork, tokens: int) -> float:
        """The weights once, the cache of all attending requests, and the newly written KV."""
        kv_tokens = work.context_kv_tokens + work.writers_kv_tokens + tokens
        return self.model.weight_bytes_read(tokens) + self.model.kv_bytes_per_token * kv_tokens


def padded(tokens: int) -> int:
    """Return the size at which a batch of `tokens` runs: the next with a kernel or graph."""
    if tokens <= 2:
        return tokens
    if tokens <= 4:
        return 4
    multiple = 8 if tokens <= 256 else 16 if tokens <= 512 else 64
    return -(-tokens // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Noise:
    """Deviations from the price; all 0 for perfectly regular steps.

    `step_ratio` is the standard deviation of one step's length, `drift_ratio` the amplitude of the
    mean's oscillation over `drift_period_seconds`.
    """

    step_ratio: float = 0.0
    drift_ratio: float = 0.0
    drift_period_seconds: float = 3600.0


class StepNoise:
    """The factor on the length of an engine's steps."""

    def __init__(self, noise: Noise, rng: random.Random) -> None:
        self._noise = noise
        self._rng = rng
        self._phase = rng.uniform(0, 2 * math.pi)

    def factor(self, now_ns: int, steps: int) -> float:
        """Return the factor on the mean length of `steps` steps that begin now."""
        noise, factor = self._noise, 1.0
        if noise.drift_ratio:
            turns = now_ns / SECOND_NS / noise.drift_period_seconds
            factor *= 1 + noise.drift_ratio * math.sin(2 * math.pi * turns + self._phase)
        if noise.step_ratio:
            # The mean of n independent lengths deviates √n times less than one.
            deviation = self._rng.gauss(0.0, noise.step_ratio) / math.sqrt(steps)
            factor *= max(0.1, 1 + deviation)
        return factor
