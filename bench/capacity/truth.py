"""An engine's true limits, from the simulator's prices without noise."""

from __future__ import annotations

import random

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_cluster.simulator.load import Arrivals, Constant, Lengths, Mix
from disagg_exporter.capacity.curves.limits import KNEE_SHARE

_DRAWN_PROMPTS = 2000
_COARSE = 1.02


def knee(spec: EngineSpec, prompt_tokens: float, lengths: Lengths) -> tuple[float, float]:
    """Return (tokens of a step, tokens a second) at the knee, for prompts as they arrive.

    The knee is the smallest step that reaches nine tenths of the best rate. Tokens per second are
    nine tenths of what an engine with an endless queue computes, in steps of the largest size.
    """
    prompts = _prompts(prompt_tokens, lengths)
    pairs_a_token = sum(n * (n + 1) / 2 for n in prompts) / sum(prompts)
    sizes, size = [], 16.0
    while size < spec.step_tokens:
        sizes.append(round(size))
        size *= _COARSE
    rates = {n: _rate(spec, n, min(pairs_a_token, (n + 1) / 2)) for n in sizes}
    best = max(rates.values())
    full = _rate(spec, spec.step_tokens, pairs_a_token)
    at_knee = next(n for n, rate in rates.items() if rate >= KNEE_SHARE * best)
    return at_knee, KNEE_SHARE * full


def target_batch(spec: EngineSpec, kv_tokens_each: float, target_seconds: float) -> float | None:
    """Return the largest batch whose step, with the host's gap, meets the target.

    None where one request misses it.
    """
    low, high = 1.0, 100_000.0
    if step_seconds(spec, low, kv_tokens_each) > target_seconds:
        return None
    while high - low > 0.5:
        middle = (low + high) / 2
        if step_seconds(spec, middle, kv_tokens_each) <= target_seconds:
            low = middle
        else:
            high = middle
    return low


def step_seconds(spec: EngineSpec, batch: float, kv_tokens_each: float) -> float:
    """Return the time from one token to the next in a batch of this size."""
    work = BatchWork(writers=round(batch), writers_kv_tokens=batch * kv_tokens_each)
    return spec.step_costs().price(work).seconds + spec.gap_seconds


def _rate(spec: EngineSpec, tokens: int, pairs_a_token: float) -> float:
    work = BatchWork(tokens, round(tokens * pairs_a_token), tokens)
    return tokens / (spec.step_costs().price(work).seconds + spec.gap_seconds)


def _prompts(mean_tokens: float, lengths: Lengths) -> list[int]:
    arrivals = Arrivals(Constant(Mix(100.0, mean_tokens, 1)), lengths, random.Random(0), 0)
    drawn = (arrivals.draw(0)[1] for _ in range(_DRAWN_PROMPTS))
    return [request.prompt_tokens for request in drawn if request is not None]
