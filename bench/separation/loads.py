"""Loads for simulated mixed engines and pools, drawn from a seed.

Models and GPUs are those of the shipped price tables. Targets are multiples of a lone request's
times, so that they are neither unreachable nor without effect.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.simulator.engine.hardware import (
    A100,
    B200,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    Gpu,
    Model,
)

ENGINES = ((H100, LLAMA_8B, 1), (A100, LLAMA_8B, 1), (B200, LLAMA_8B, 1), (L40S, LLAMA_8B, 1))
ENGINES += ((H200, LLAMA_70B, 4), (H100, LLAMA_70B, 4))
_SLOW_BYTES_PER_SECOND, _FAST_BYTES_PER_SECOND = 3e9, 40e9


@dataclass(frozen=True, slots=True)
class LoadCase:
    """A number of engines of one kind on one kind of GPU, their load and their targets."""

    gpu: Gpu
    model: Model
    gpus_each: int
    engines: int
    mix: RequestMix
    targets: Targets
    link: KvLink

    @property
    def costs(self) -> EngineCosts:
        """The costs of one engine, by its price table."""
        return priced_costs(self.gpu, self.model, self.gpus_each)

    @property
    def gpus(self) -> int:
        """The GPUs of all engines."""
        return self.engines * self.gpus_each


def cases(count: int, seed: int) -> Iterator[LoadCase]:
    """Yield `count` loads, the same for a seed."""
    rng = random.Random(f"{seed} loads")
    for number in range(count):
        gpu, model, gpus_each = ENGINES[number % len(ENGINES)]
        costs = priced_costs(gpu, model, gpus_each)
        mix = RequestMix(
            1.0,
            prompt_tokens=round(_between(rng, 200, 8000)),
            output_tokens=round(_between(rng, 50, 400)),
            prompt_dispersion=rng.choice((0.0, 0.3, 1.0)),
            output_dispersion=rng.choice((0.0, 0.3, 1.0)),
        )
        lone_step = costs.step_seconds(0.0, 0.0, 1.0, mix.context_tokens)
        lone_prompt = costs.step_seconds(mix.prompt_tokens, mix.prompt_tokens / 2, 0.0, 0.0)
        tail = math.exp(2 * math.sqrt(math.log1p(mix.prompt_dispersion)))
        yield LoadCase(
            gpu,
            model,
            gpus_each,
            rng.choice((3, 4, 6)),
            mix,
            Targets(
                ttft_seconds=0.1 + lone_prompt * tail * rng.uniform(2, 8),
                itl_seconds=lone_step * rng.uniform(1.5, 4),
            ),
            KvLink(rng.choice((_SLOW_BYTES_PER_SECOND, _FAST_BYTES_PER_SECOND)), 0.002),
        )


def _between(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
