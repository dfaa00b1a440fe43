"""Searches for a knee or a batch: ours, and those it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.tune.simulated import BATCHES, GRID, NoisyEngine

from disagg_cluster.tune.batch_search import BatchSearch, batch_estimate
from disagg_cluster.tune.knee_search import KneeSearch, knee_estimate
from disagg_cluster.tune.probed import TimedSteps
from disagg_exporter.capacity.curves.limits import KNEE_SHARE

_GOLDEN = (math.sqrt(5) - 1) / 2
_DECODE_SAMPLES = 24


@dataclass(frozen=True, slots=True)
class FoundSize:
    """The result of a search: a size, or None if it concludes none; and its cost."""

    size: float | None
    probes: int
    seconds: float


Search = Callable[[NoisyEngine, int], FoundSize]


def ours(engine: NoisyEngine, prompt_tokens: int) -> FoundSize:
    """Run the tuner's own search."""
    search, probed = KneeSearch(GRID, len(GRID) // 2), TimedSteps()
    while (size := search.next_size(probed)) is not None:
        probed = probed.plus(engine.prefill(size, prompt_tokens))
    return _read(engine, probed)


def full_sweep(engine: NoisyEngine, prompt_tokens: int) -> FoundSize:
    """Probe every size of the grid once; the knee is read by the same function."""
    return _read(engine, TimedSteps(tuple(engine.prefill(size, prompt_tokens) for size in GRID)))


def powers_of_two(engine: NoisyEngine, prompt_tokens: int) -> FoundSize:
    """Probe every doubling, as load tests do; return the first with nine tenths of the best."""
    rates = {size: _rate(engine, size, prompt_tokens) for size in GRID[::4]}
    best = max(rates.values())
    return _found(engine, next(s for s, r in rates.items() if r >= KNEE_SHARE * best))


def bisection(engine: NoisyEngine, prompt_tokens: int) -> FoundSize:
    """Take the largest step's rate as the best; bisect to where nine tenths of it are reached."""
    best = _rate(engine, GRID[-1], prompt_tokens)
    return _found(engine, _halved(engine, prompt_tokens, 0, len(GRID) - 1, best))


def golden_section(engine: NoisyEngine, prompt_tokens: int) -> FoundSize:
    """Find the best rate by golden section (Kiefer 1953), then bisect to nine tenths of it."""
    low, high = 0.0, float(len(GRID) - 1)
    rates: dict[int, float] = {}

    def rate(place: float) -> float:
        at = round(place)
        if at not in rates:
            rates[at] = _rate(engine, GRID[at], prompt_tokens)
        return rates[at]

    while high - low > 2:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (left, high) if rate(left) < rate(right) else (low, right)
    top = max(rates, key=lambda place: rates[place])
    return _found(engine, _halved(engine, prompt_tokens, 0, top, rates[top]))


def _halved(engine: NoisyEngine, prompt_tokens: int, low: int, high: int, best: float) -> float:
    while high - low > 1:
        middle = (low + high) // 2
        if _rate(engine, GRID[middle], prompt_tokens) >= KNEE_SHARE * best:
            high = middle
        else:
            low = middle
    return float(GRID[high])


def _rate(engine: NoisyEngine, size: int, prompt_tokens: int) -> float:
    return size / median(engine.prefill(size, prompt_tokens).seconds)


def _found(engine: NoisyEngine, size: float) -> FoundSize:
    return FoundSize(size, engine.probes, engine.seconds)


def _read(engine: NoisyEngine, probed: TimedSteps) -> FoundSize:
    found = knee_estimate(probed.points)
    knee = found.limit.knee_tokens if found and found.limit else None
    return FoundSize(knee, engine.probes, engine.seconds)


SEARCHES: dict[str, Search] = {
    "ours": ours,
    "full sweep": full_sweep,
    "golden section": golden_section,
    "bisection": bisection,
    "powers of two": powers_of_two,
}


def our_batch(engine: NoisyEngine, context_tokens: int, target_seconds: float) -> FoundSize:
    """Run the tuner's own search of a batch."""
    search, probed = BatchSearch(BATCHES, target_seconds, len(BATCHES)), TimedSteps()
    while (size := search.next_size(probed)) is not None:
        probed = probed.plus(engine.decode(size, context_tokens, _DECODE_SAMPLES))
    return FoundSize(batch_estimate(probed, target_seconds).requests, engine.probes, engine.seconds)


def swept_batch(engine: NoisyEngine, context_tokens: int, target_seconds: float) -> FoundSize:
    """Probe every batch of the grid once; return the largest with its median within the target."""
    quick = [
        batch
        for batch in BATCHES
        if median(engine.decode(batch, context_tokens, _DECODE_SAMPLES).seconds) <= target_seconds
    ]
    return FoundSize(max(quick, default=None), engine.probes, engine.seconds)
