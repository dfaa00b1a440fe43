"""Step costs on a real GPU, composed of layer times that LLMServingSim measured.

`tests/data/llmservingsim` holds, for three models on one RTX PRO 6000 under vLLM 0.19 (eager,
FlashAttention-2), the times of dense layers by tokens, of experts by tokens and active experts, of
the head by requests, and of attention by prompt chunk, its context, requests that decode and their
context: a *mixed* batch is measured there as one, not composed of its parts.
"""

from __future__ import annotations

import csv
import gzip
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from disagg_cluster.simulator.engine.roofline import BatchWork, Price

DATA = Path(__file__).parents[2] / "tests/data/llmservingsim"
ONCE = ("embedding", "final_layernorm")
TWICE_A_LAYER = ("layernorm",)
_BY_REQUESTS = ("lm_head", "sampler")
_CHUNKS = (0, *(16 * 2**n for n in range(8)))
_CONTEXTS = (0, *(16 * 2**n for n in range(11)))
_WRITERS = (0, *(2**n for n in range(8)))
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    """Facts about a model beside its layer times; without experts `experts` is 0."""

    name: str
    layers: int
    experts: int = 0
    experts_per_token: int = 0


SHAPES = (
    Shape("llama-3.1-8b", 32),
    Shape("qwen3-32b", 64),
    Shape("qwen3-30b-a3b", 48, experts=128, experts_per_token=8),
)


class MeasuredSteps:
    """The price of a step as the sum of its layers' measured times, linear between points.

    Sizes below the smallest measured one cost as much as that one. An empty step is one token that
    attends to nothing.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._layers = _curves(f"{shape.name}.layers", "layer", "count")
        self._attention = _attention(shape.name)
        self._experts = _experts(shape.name) if shape.experts else {}

    def price(self, work: BatchWork) -> Price:
        """Return the price of one step with this work."""
        tokens = max(work.context_tokens + work.writers, 1)
        micros = self._dense(tokens) + self._shape.layers * self._attend(work)
        requests = max(work.writers, 1)
        micros += sum(_along(*self._layers[name], requests) for name in _BY_REQUESTS)
        return Price(micros * _MICRO)

    def _dense(self, tokens: int) -> float:
        micros = 0.0
        for name, (sizes, times) in self._layers.items():
            if name in _BY_REQUESTS:
                continue
            often = 1 if name in ONCE else self._shape.layers * (1 + (name in TWICE_A_LAYER))
            micros += often * _along(sizes, times, tokens)
        if self._experts:
            shape = self._shape
            untouched = (1 - shape.experts_per_token / shape.experts) ** tokens
            active = shape.experts * (1 - untouched)
            micros += shape.layers * self._chosen(tokens, active)
        return micros

    def _chosen(self, tokens: int, active: float) -> float:
        """Return the time of the experts of one layer."""
        sizes = sorted(self._experts)
        times = [_along(*self._experts[size], active) for size in sizes]
        return _along(sizes, times, tokens)

    def _attend(self, work: BatchWork) -> float:
        """Time of one layer's attention."""
        chunk, writers = work.context_tokens, work.writers
        if not chunk and not writers:
            return 0.0
        # Several prompts count as one with as many tokens and as much attention.
        context = max(work.context_pairs / chunk - (chunk + 1) / 2, 0.0) if chunk else 0.0
        read = work.writers_kv_tokens / writers if writers else 0.0
        least = [min(chunk, 1) * 16, 0, min(writers, 1), min(writers, 1) * 16]
        point = [max(a, b) for a, b in zip((chunk, context, writers, read), least, strict=True)]
        axes = (_CHUNKS, _CONTEXTS, _WRITERS, _CONTEXTS)
        return between(self._attention, axes, point)


def between(
    table: dict[tuple[int, ...], float], axes: Sequence[Sequence[int]], point: Sequence[float]
) -> float:
    """Interpolate a table, linear in each direction, extrapolated beyond the last point."""
    sides = []
    for axis, at in zip(axes, point, strict=True):
        low = min(max(bisect_right(axis, at) - 1, 0), len(axis) - 2)
        part = (at - axis[low]) / (axis[low + 1] - axis[low])
        sides.append([(axis[low], 1 - part), (axis[low + 1], part)] if part else [(axis[low], 1.0)])
    value = 0.0
    for corner in product(*sides):
        weight = 1.0
        for _, part in corner:
            weight *= part
        if weight:
            value += weight * table[tuple(at for at, _ in corner)]
    return value


def _along(sizes: Sequence[float], times: Sequence[float], size: float) -> float:
    """Interpolate a curve, extrapolated beyond its last point, constant before the first."""
    if size <= sizes[0] or len(sizes) == 1:
        return times[0]
    low = min(bisect_right(sizes, size) - 1, len(sizes) - 2)
    part = (size - sizes[low]) / (sizes[low + 1] - sizes[low])
    return times[low] + part * (times[low + 1] - times[low])


Curve = tuple[list[float], list[float]]


@cache
def _curves(name: str, key: str, size: str) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for row in _rows(name):
        sizes, times = found.setdefault(row[key], ([], []))
        sizes.append(float(row[size]))
        times.append(float(row["time_us"]))
    return found


@cache
def _attention(name: str) -> dict[tuple[int, ...], float]:
    return {
        tuple(int(row[axis]) for axis in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")):
        float(row["time_us"])
        for row in _rows(f"{name}.attention")
    }  # fmt: skip


@cache
def _experts(name: str) -> dict[float, Curve]:
    found = _curves(f"{name}.experts", "tokens", "activated_experts")
    return {float(tokens): curve for tokens, curve in found.items()}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)
