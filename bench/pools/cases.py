"""Pools over models, GPUs, lengths, sizes and burstiness, at realistic targets."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from bench.pools.simulated import PoolCase

from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.engine.hardware import (
    A100,
    B200,
    GPT_OSS_120B,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    QWEN3_32B,
    RTX_PRO_6000,
    Gpu,
    Model,
)
from disagg_exporter.model import Role


def _mix(prompt: float, output: float, arrivals: float = 1.0, spread: float = 0.9) -> RequestMix:
    return RequestMix(
        1.0,
        prompt,
        output,
        arrival_dispersion=arrivals,
        prompt_dispersion=spread,
        output_dispersion=0.4,
    )


_CHAT, _BURSTY = _mix(1155, 211), _mix(1155, 211, 8.0)
_P, _D, _M = Role.PREFILL, Role.DECODE, Role.MIXED
_8B, _70B, _OSS, _32B = LLAMA_8B, LLAMA_70B, GPT_OSS_120B, QWEN3_32B

# Role, GPU, model, GPUs an engine, engines, mix, TTFT, ITL.
_ROWS = (
    (_P, H100, _8B, 1, 1, _CHAT, 0.5, 0.03),
    (_P, H100, _8B, 1, 4, _CHAT, 0.5, 0.03),
    (_P, H100, _8B, 1, 4, _BURSTY, 0.5, 0.03),
    (_P, L40S, _8B, 1, 2, _mix(3000, 200, spread=0.5), 2.0, 0.06),
    (_P, H100, _70B, 4, 2, _mix(2000, 200), 1.0, 0.05),
    (_P, A100, _8B, 1, 8, _mix(200, 200), 0.2, 0.05),
    (_P, H100, _OSS, 2, 3, _mix(12_000, 300, spread=1.0), 3.0, 0.02),
    (_P, RTX_PRO_6000, _32B, 2, 2, _mix(1500, 200, 3.0), 2.0, 0.06),
    (_P, H100, _8B, 1, 1, _mix(100, 100), 0.15, 0.03),
    (_P, H100, _70B, 4, 1, _mix(6000, 200, 1.0, 0.0), 2.0, 0.05),
    (_D, H100, _8B, 1, 1, _CHAT, 1.0, 0.012),
    (_D, H100, _8B, 1, 4, _BURSTY, 1.0, 0.012),
    (_D, H100, _70B, 4, 2, _mix(8000, 400), 1.0, 0.03),
    (_D, L40S, _8B, 1, 2, _mix(800, 300), 1.0, 0.05),
    (_D, H100, _OSS, 2, 3, _mix(1000, 600), 1.0, 0.012),
    (_D, A100, _8B, 1, 8, _mix(2000, 800), 1.0, 0.03),
    (_D, H100, _8B, 1, 2, _mix(400, 200), 1.0, 0.05),
    (_D, L40S, _8B, 1, 2, _mix(6000, 300), 1.0, 0.1),
    (_M, H100, _8B, 1, 1, _CHAT, 0.5, 0.03),
    (_M, H100, _8B, 1, 4, _CHAT, 0.5, 0.02),
    (_M, H100, _8B, 1, 4, _BURSTY, 0.5, 0.03),
    (_M, L40S, _8B, 1, 2, _mix(1500, 200), 2.0, 0.08),
    (_M, H100, _70B, 4, 2, _mix(3000, 300), 1.5, 0.05),
    (_M, A100, _8B, 1, 4, _mix(300, 600), 1.0, 0.03),
    (_M, H100, _OSS, 2, 2, _mix(4000, 300), 1.0, 0.03),
    (_M, RTX_PRO_6000, _32B, 2, 2, _mix(1000, 300), 2.0, 0.1),
    (_M, H100, _8B, 1, 2, _mix(8000, 100, 1.0, 0.5), 3.0, 0.2),
)


def chosen_cases() -> list[PoolCase]:
    """Return the pools of the table."""
    return [
        _case(role, gpu, model, gpus, engines, mix, Targets(ttft, itl))
        for role, gpu, model, gpus, engines, mix, ttft, itl in _ROWS
    ]


def _case(
    role: Role,
    gpu: Gpu,
    model: Model,
    gpus: int,
    engines: int,
    mix: RequestMix,
    targets: Targets,
) -> PoolCase:
    name = (
        f"{engines} x {gpus} {gpu.name.split()[1]}, {model.name.split('/')[1]}, "
        f"{mix.prompt_tokens:.0f}/{mix.output_tokens:.0f}"
    )
    if role is _P:
        # Its decode engines, which take no time, need one token more to end the request.
        mix = replace(mix, output_tokens=2.0)
        targets = replace(targets, itl_seconds=math.inf)
    requests = 3000 if role is _P else 1500
    return PoolCase(name, role, gpu, model, gpus, engines, mix, targets, requests)


_TABLES = (
    (H100, _8B, 1),
    (A100, _8B, 1),
    (L40S, _8B, 1),
    (B200, _8B, 1),
    (H100, _70B, 4),
    (H200, _70B, 4),
    (H100, _OSS, 2),
    (RTX_PRO_6000, _32B, 2),
)


def drawn_cases(count: int, seed: int) -> list[PoolCase]:
    """Return pools drawn in all properties, with targets as multiples of a lone request's times."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        role = (_P, _D, _M)[number % 3]
        gpu, model, gpus = rng.choice(_TABLES)
        mix = RequestMix(
            1.0,
            prompt_tokens=round(math.exp(rng.uniform(math.log(100), math.log(6000)))),
            output_tokens=round(math.exp(rng.uniform(math.log(50), math.log(800)))),
            arrival_dispersion=rng.choice((1.0, 1.0, 2.0, 6.0)),
            prompt_dispersion=rng.choice((0.0, 0.5, 1.5)),
            output_dispersion=rng.choice((0.2, 0.8)),
        )
        costs = priced_costs(gpu, model, gpus)
        prompt_seconds = costs.step_seconds(mix.prompt_tokens, mix.prompt_tokens / 2, 0, 0)
        step_seconds = costs.step_seconds(0, 0, 1, mix.context_tokens)
        targets = Targets(
            ttft_seconds=round(max(5 * prompt_seconds, 0.1) * rng.uniform(1.2, 5), 3),
            itl_seconds=round(step_seconds * rng.uniform(1.5, 4), 4),
        )
        engines = rng.choice((1, 2, 4, 6))
        found.append(_case(role, gpu, model, gpus, engines, mix, targets))
    return found
