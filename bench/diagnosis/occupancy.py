"""How long requests occupy engines, and how many are concurrent."""

from __future__ import annotations

import random
from statistics import fmean

from disagg_cluster.simulator.engine.batch import Request
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel
from disagg_cluster.simulator.load import Arrivals, Constant, Lengths, Mix


def prompt_seconds(
    costs: CostModel, prompt_tokens: int, step_tokens: int, cached_tokens: int = 0
) -> float:
    """How long a prompt occupies a busy engine: its share of steps that others fill up."""
    seconds, done = 0.0, cached_tokens
    while done < prompt_tokens:
        chunk = min(step_tokens, prompt_tokens - done)
        pairs = step_tokens * done + step_tokens * chunk // 2
        full = BatchWork(step_tokens, pairs, done + step_tokens)
        seconds += costs.price(full).seconds * chunk / step_tokens
        done += chunk
    return seconds


def drawn_requests(mix: Mix, lengths: Lengths, count: int = 200) -> list[Request]:
    """Requests drawn from a load."""
    arrivals = Arrivals(Constant(mix), lengths, random.Random(0), 0)
    found: list[Request] = []
    t_ns = 0
    while len(found) < count:
        t_ns, request = arrivals.draw(t_ns)
        if request is not None:
            found.append(request)
    return found


def mean_prompt_seconds(
    costs: CostModel, mix: Mix, lengths: Lengths, step_tokens: int, *, count: int = 200
) -> float:
    """Mean time that a prompt of a load occupies an engine, with its prefix cached."""
    requests = drawn_requests(mix, lengths, count)
    return fmean(
        prompt_seconds(
            costs,
            request.prompt_tokens,
            step_tokens,
            0 if request.prefix is None else request.prefix.tokens,
        )
        for request in requests
    )


def writers_at_once(
    costs: CostModel, tokens_per_second: float, kv_tokens: float, prompts_ratio: float = 0.0
) -> float:
    """Number of concurrent decode requests on an engine that must generate so many tokens.

    Little's law, each token taking a step of that batch. `prompts_ratio`: the share of time in
    which the engine computes prompts.
    """
    batch = 1.0
    for _ in range(50):
        work = BatchWork(writers=max(1, round(batch)), writers_kv_tokens=batch * kv_tokens)
        now = tokens_per_second * costs.price(work).seconds / max(0.05, 1 - prompts_ratio)
        batch = min(1000.0, (batch + now) / 2)
    return batch


def decode_batch(costs: CostModel, kv_tokens: float, itl_seconds: float, most: int) -> int:
    """The largest batch of requests with this context whose step is within the target."""
    fitting = 1
    for batch in range(1, most + 1):
        work = BatchWork(writers=batch, writers_kv_tokens=batch * kv_tokens)
        if costs.price(work).seconds > itl_seconds:
            break
        fitting = batch
    return fitting


def writing_seconds(costs: CostModel, kv_tokens: float) -> float:
    """Engine time per token at a decode batch of sixteen requests."""
    work = BatchWork(writers=16, writers_kv_tokens=16 * kv_tokens)
    return costs.price(work).seconds / 16
