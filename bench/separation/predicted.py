"""The gain of separating, predicted from mixed deployments and kernel tables.

It is the largest load of p prefill and d decode workers at a fixed concurrency, as the deployments
were measured: no queue, no tail, all lengths alike. Decode batches are the largest, in doublings as
in the mixed rows' sweeps, whose step is fast enough for the users; prefill workers keep up with
them; every worker's memory holds at least one request. Of each pool only the share counts that
NVIDIA's aiconfigurator assumes two pools that wait for each other can use.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from bench.separation.deployments import Deployment, Kind, Pair, Parallel
from bench.separation.kernel_tables import KernelSteps
from bench.separation.step_costs import Estimate, Floats, LearnedSteps

from disagg_cluster.planner.separation.verdict import Gain

_BATCHES = tuple(2**power for power in range(13))
_MOST_GPUS = 64
_DRAWS = 9
# A verdict is decided if its side is right nine times of ten.
_LOW, _HIGH = 0.1, 0.9
# aiconfigurator, sdk/picking.py: for bubbles in the pipeline "when benchmarking with concurrency",
# and for free places in the decode batch.
_PREFILL_USED, _DECODE_USED = 0.9, 0.92


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predicted gain of a pair, and the split that it is for."""

    pair: Pair
    gain: Gain
    backend: str
    prefill: Parallel
    decode: Parallel
    batch: int


class Predictor:
    """Predicts gains from the mixed rows, by model, GPU, precision and backend.

    Args:
        rows: Deployments, which correct the tables; separate ones are ignored.
    """

    def __init__(self, rows: Iterable[Deployment]) -> None:
        self._rows: dict[tuple[str, str, str], dict[str, list[Deployment]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for row in rows:
            if row.mixed:
                self._rows[row.kind[:3]][row.backend].append(row)
        self._learned: dict[tuple[str, str, str, str], LearnedSteps] = {}

    def of(self, pair: Pair) -> Predicted | None:
        """Predict a pair's gain, its mixed half being known; None if the tables lack too much.

        Each backend contributes the split that is the best at the low end, and so surely good. The
        backend of the separate half is unknown, so all known ones count alike; the best is named.
        """
        best = [
            max(splits, key=_surely)
            for backend, rows in self._rows[pair.kind[:3]].items()
            if (splits := list(self._splits(pair, backend, rows)))
        ]
        if not best:
            return None
        loads = np.concatenate([split.loads for split in best])
        low, middle, high = (
            max(float(np.quantile(loads, level)), 1e-3) / pair.mixed for level in (_LOW, 0.5, _HIGH)
        )
        named = max(best, key=_surely)
        return Predicted(
            pair, Gain(middle, low, high), named.backend, named.prefill, named.decode, named.batch
        )

    def by_tables(self, pair: Pair) -> float | None:
        """Return the gain by uncorrected tables for both ways; None if they lack too much."""
        mixed, separate = [0.0], [0.0]
        for backend, rows in self._rows[pair.kind[:3]].items():
            steps = self._steps(pair.kind, backend, rows).steps
            mixed += [_mixed(pair, each) for each in steps.values()]
            separate += [
                _exact(pair, prefill, decode)
                for prefill in steps.values()
                for decode in steps.values()
            ]
        return max(separate) / max(mixed) if max(mixed) else None

    def _splits(self, pair: Pair, backend: str, rows: Sequence[Deployment]) -> Iterator[_Split]:
        """Yield all pairs of workers that the tables know and that hold a request."""
        learned = self._steps(pair.kind, backend, rows)
        tokens = pair.kind.prompt_tokens + pair.kind.output_tokens
        room = {each: learned.room_tokens(each) for each in learned.steps}
        able = [each for each, kv_tokens in room.items() if kv_tokens >= tokens]
        context = pair.kind.prompt_tokens + pair.kind.output_tokens / 2
        for decode in able:
            steps = {
                batch: learned.decode(decode, batch, context)
                for batch in _BATCHES
                if batch >= decode.attention_data and batch * context <= room[decode]
            }
            for prefill in able:
                prompt = learned.prompt(prefill, pair.kind.prompt_tokens)
                loads = np.array(list(_loads(pair, steps, prompt, decode.gpus, prefill.gpus)))
                batch = _largest(pair, steps, 0.0)
                yield _Split(loads, backend, prefill, decode, batch or 0)

    def _steps(self, kind: Kind, backend: str, rows: Sequence[Deployment]) -> LearnedSteps:
        key = (*kind[:3], backend)
        if key not in self._learned:
            steps = {}
            for parallel in _ways(rows):
                try:
                    steps[parallel] = KernelSteps(kind, backend, rows[0].quantization, parallel)
                except LookupError:
                    continue
            self._learned[key] = LearnedSteps(steps, rows)
        return self._learned[key]


class _Split(NamedTuple):
    """Two kinds of worker of one backend, and tokens/s/GPU for draws of the unknowns."""

    loads: Floats
    backend: str
    prefill: Parallel
    decode: Parallel
    batch: int


def _surely(split: _Split) -> tuple[float, float]:
    return float(np.quantile(split.loads, _LOW)), float(split.loads.mean())


def _ways(rows: Sequence[Deployment]) -> set[Parallel]:
    """Return the ways to divide the model: those of mixed rows, and data-parallel attention."""
    ways = {row.parallel for row in rows}
    experts = any(way.expert > 1 for way in ways) or any(row.quantization[1] for row in rows)
    if experts:
        ways |= {Parallel(1, way.gpus, 1, way.gpus) for way in ways}
    return ways


def _largest(pair: Pair, steps: dict[int, Estimate], off: float) -> int | None:
    """Return the largest batch whose step is fast enough, `off` standard errors from its mean."""
    most = 1 / pair.user_tokens_per_second
    fast = [
        batch for batch, step in steps.items() if step.seconds * math.exp(off * step.error) <= most
    ]
    return max(fast, default=None)


def _loads(
    pair: Pair, steps: dict[int, Estimate], prompt: Estimate, decode_gpus: int, prefill_gpus: int
) -> Iterator[float]:
    """Yield tokens/s/GPU of the best split, for draws of the errors of steps and prompts."""
    normal = NormalDist()
    levels = [normal.inv_cdf((number + 0.5) / _DRAWS) for number in range(_DRAWS)]
    for off in levels:
        batch = _largest(pair, steps, off)
        if batch is None:
            yield from [0.0] * len(levels)
            continue
        step_seconds = steps[batch].seconds * math.exp(off * steps[batch].error)
        decoding = batch / (pair.kind.output_tokens * step_seconds)
        for prompt_off in levels:
            prefilling = 1 / (prompt.seconds * math.exp(prompt_off * prompt.error))
            best = _best_split(prefilling, decoding, prefill_gpus, decode_gpus)
            yield best * pair.kind.output_tokens


def _exact(pair: Pair, prefill: KernelSteps, decode: KernelSteps) -> float:
    """Return tokens/s/GPU of the best split of these workers by the tables."""
    context = pair.kind.prompt_tokens + pair.kind.output_tokens / 2
    steps = {
        batch: Estimate(decode.decode_seconds(batch, context), 0.0)
        for batch in _BATCHES
        if batch >= decode.parallel.attention_data
    }
    batch = _largest(pair, steps, 0.0)
    if batch is None:
        return 0.0
    decoding = batch / (pair.kind.output_tokens * steps[batch].seconds)
    prefilling = 1 / prefill.prompt_seconds(pair.kind.prompt_tokens)
    gpus = prefill.parallel.gpus, decode.parallel.gpus
    return _best_split(prefilling, decoding, *gpus) * pair.kind.output_tokens


def _mixed(pair: Pair, steps: KernelSteps) -> float:
    """Return tokens/s/GPU of a mixed worker by the tables, at the largest batch fast enough."""
    kind, best = pair.kind, 0.0
    prompt = steps.prompt_seconds(kind.prompt_tokens)
    for batch in _BATCHES:
        if batch < steps.parallel.attention_data:
            continue
        step = steps.decode_seconds(batch, kind.prompt_tokens + kind.output_tokens / 2)
        # While a request writes, a prompt arrives for every request of the batch.
        each = kind.output_tokens * step + batch * prompt
        if each / kind.output_tokens <= 1 / pair.user_tokens_per_second:
            best = max(best, batch / each * kind.output_tokens / steps.parallel.gpus)
    return best


def _best_split(prefilling: float, decoding: float, prefill_gpus: int, decode_gpus: int) -> float:
    """Return requests/s/GPU of the best whole numbers of workers."""
    best = 0.0
    for prefill in range(1, (_MOST_GPUS - decode_gpus) // prefill_gpus + 1):
        most = (_MOST_GPUS - prefill * prefill_gpus) // decode_gpus
        enough = max(1, math.floor(prefill * prefilling * _PREFILL_USED / decoding / _DECODE_USED))
        for decode in {min(most, enough), min(most, enough + 1)}:
            gpus = prefill * prefill_gpus + decode * decode_gpus
            load = min(prefill * prefilling * _PREFILL_USED, decode * decoding * _DECODE_USED)
            best = max(best, load / gpus)
    return best
