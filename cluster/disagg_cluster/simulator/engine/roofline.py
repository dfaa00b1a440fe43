"""How long a step takes: the slower of computing and reading, plus communication between the GPUs.

The roofline of Williams, Waterman and Patterson (CACM 2009), applied to a transformer's step:
operations over peak against bytes over bandwidth, each at an efficiency that kernels reach. Noise,
drift and faults make it longer or shorter.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from disagg_cluster.simulator.engine.hardware import Gpu, Model

_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class BatchWork:
    """What one step computes.

    `context_tokens` are computed in bulk; they attend to `context_pairs` (token, earlier token)
    pairs and read `context_kv_tokens` of cache. `writers` compute one token each and read
    `writers_kv_tokens` of cache together (the mean of several steps may be half a token).
    """

    context_tokens: int = 0
    context_pairs: int = 0
    context_kv_tokens: int = 0
    writers: int = 0
    writers_kv_tokens: float = 0


@dataclass(frozen=True, slots=True)
class Price:
    """What one step takes, and which part of the peaks of arithmetic and memory it makes use of."""

    seconds: float
    compute_ratio: float = 0.0
    memory_ratio: float = 0.0


class CostModel(Protocol):
    """Anything that knows what a step costs."""

    def price(self, work: BatchWork) -> Price:
        """The price of one step with this work."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The cost of steps of one model on a tensor-parallel group of equal GPUs.

    The two efficiencies, the launch and the latency of one all-reduce are of the order that
    serving engines reach on such GPUs, not measured ones. `clock_ratio` below 1 is a throttled
    group: it computes slower and reads as fast as ever.
    """

    gpu: Gpu
    model: Model
    tensor_parallel: int = 1
    compute_efficiency: float = 0.65
    bandwidth_efficiency: float = 0.85
    launch_seconds: float = 0.0004
    all_reduce_seconds: float = 8e-6
    clock_ratio: float = 1.0

    def price(self, work: BatchWork) -> Price:
        """The price of one step with this work."""
        tokens = padded(work.context_tokens + work.writers)
        peak_seconds = self._operations(work, tokens) / (self.gpu.flops * self.tensor_parallel)
        memory_seconds = self._bytes(work, tokens) / (
            self.gpu.bytes_per_second * self.tensor_parallel
        )
        busy_seconds = max(
            peak_seconds / (self.compute_efficiency * self.clock_ratio),
            memory_seconds / self.bandwidth_efficiency,
        )
        seconds = busy_seconds + self.launch_seconds + self._exchange_seconds(tokens)
        return Price(seconds, peak_seconds / seconds, memory_seconds / seconds)

    def kv_tokens(self, memory_ratio: float = 0.9, reserved_bytes: int = 4 * 10**9) -> int:
        """Room of the KV cache: what weights and working memory leave of the engine's share.

        0 where not even the weights fit. `reserved_bytes` a GPU are for activations and graphs.
        """
        share_bytes = self.gpu.memory_bytes * memory_ratio - reserved_bytes
        left_bytes = share_bytes * self.tensor_parallel - self.model.weight_bytes
        return max(0, int(left_bytes / self.model.kv_bytes_per_token))

    def _operations(self, work: BatchWork, tokens: int) -> float:
        """Two for each parameter and token; four for each layer, channel and attended pair."""
        pairs = work.context_pairs + work.writers_kv_tokens
        attention = 4.0 * self.model.layers * self.model.attention_width * pairs
        return 2.0 * self.model.active_parameters * tokens + attention

    def _bytes(self, work: BatchWork, tokens: int) -> float:
        """The weights once, the cache of everyone who attends to it, and what is added to it."""
        kv_tokens = work.context_kv_tokens + work.writers_kv_tokens + tokens
        return self.model.weight_bytes_read(tokens) + self.model.kv_bytes_per_token * kv_tokens

    def _exchange_seconds(self, tokens: int) -> float:
        """Two ring all-reduces a layer over the hidden state of every token."""
        if self.tensor_parallel == 1:
            return 0.0
        bytes_each = tokens * self.model.hidden * _ACTIVATION_BYTES
        around = 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        each_seconds = self.all_reduce_seconds + around * bytes_each / (
            self.gpu.peer_bytes_per_second
        )
        return 2 * self.model.layers * each_seconds


def padded(tokens: int) -> int:
    """The size a batch of `tokens` is run at: the next one for which there is a kernel or graph."""
    if tokens <= 2:
        return tokens
    if tokens <= 4:
        return 4
    multiple = 8 if tokens <= 256 else 16 if tokens <= 512 else 64
    return -(-tokens // multiple) * multiple


_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Noise:
    """What a price does not know; all 0 for an engine that runs like clockwork.

    `step_ratio` is the standard deviation of one step's length, `drift_ratio` how far the mean
    swings to either side over `drift_period_seconds`.
    """

    step_ratio: float = 0.0
    drift_ratio: float = 0.0
    drift_period_seconds: float = 3600.0


class StepNoise:
    """The factor on the length of an engine's steps; `slowdown` is what faults make of it."""

    def __init__(self, noise: Noise, rng: random.Random) -> None:
        self.slowdown = 1.0
        self._noise = noise
        self._rng = rng
        self._phase = rng.uniform(0, 2 * math.pi)

    def factor(self, now_ns: int, steps: int) -> float:
        """The factor on the mean length of `steps` steps that begin now."""
        noise, factor = self._noise, self.slowdown
        if noise.drift_ratio:
            turns = now_ns / _NS / noise.drift_period_seconds
            factor *= 1 + noise.drift_ratio * math.sin(2 * math.pi * turns + self._phase)
        if noise.step_ratio:
            # The mean of n independent lengths strays √n times less than one.
            stray = self._rng.gauss(0.0, noise.step_ratio) / math.sqrt(steps)
            factor *= max(0.1, 1 + stray)
        return factor
