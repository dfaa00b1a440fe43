"""Randomly drawn loads, not used for development: other engines and other users."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import islice

from bench.attribution.engines import Traffic, aggregated

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.hardware import (
    A100,
    GPT_OSS_120B,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
)
from disagg_cluster.simulator.load import Lengths

_LOADS, _SEED = 20, 2026
_KINDS = (
    ("8B", LLAMA_8B, H100, 1),
    ("8B", LLAMA_8B, H200, 1),
    ("8B", LLAMA_8B, A100, 1),
    ("8B", LLAMA_8B, L40S, 1),
    ("70B", LLAMA_70B, H100, 4),
    ("70B", LLAMA_70B, A100, 4),
    ("70B", LLAMA_70B, H200, 2),
    ("gpt-oss", GPT_OSS_120B, H100, 2),
    ("gpt-oss", GPT_OSS_120B, A100, 4),
    ("gpt-oss", GPT_OSS_120B, H200, 1),
)


def _drawn(dice: random.Random) -> Iterator[tuple[EngineSpec, Traffic]]:
    """Yield engines and users without end, drawn uniformly."""
    while True:
        name, model, gpu, gpus = dice.choice(_KINDS)
        piece = dice.choice((512, 1024, 2048, 4096, 8192))
        prompt, output = _between(dice, 60, 24_000), _between(dice, 50, 900)
        lengths = Lengths(
            prompt_spread=dice.choice((0.1, 0.6, 1.2)),
            output_spread=dice.choice((0.3, 0.6, 1.0)),
            reuse_ratio=dice.choice((0.0, 0.3, 0.8)),
            prefix_tokens=max(round(prompt / 2), 1),
        )
        title = f"{name} on {gpus} {gpu.name.split()[1]}, {prompt} : {output}, {piece}"
        spec = aggregated(title, gpus=gpus, gpu=gpu, model=model, step_tokens=piece)
        yield spec, Traffic(prompt, output, lengths)


def _between(dice: random.Random, low: int, high: int) -> int:
    return round(math.exp(dice.uniform(math.log(low), math.log(high))))


HELD_OUT = tuple(islice(_drawn(random.Random(_SEED)), _LOADS))
"""Named by model, GPUs, mean tokens of prompt and answer, and the limit of tokens per step."""
