"""Steps of a real engine on a GPU, with the measured cost of each step's parts.

`tests/data/vllm-0.26.0-h200` (its README says how it was made): an 8B model on one H200. Its sweep
has prompts alone, decoding alone and both at once; so what the parts of a mixed step cost apart is
measured, and not what another model of costs says. Its loads are users that arrive at random.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.attribution.engines import Seen
from bench.gpu_steps import loads
from bench.gpu_steps.sweep import KV_TOKENS, PASTS, WRITERS
from bench.gpu_steps.watch import WatchedStep
from bench.real import shares
from bench.real.measured import between

from disagg_exporter.attribution.cost_model.samples import StepWork
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.model import Step

DATA = Path(__file__).parents[2] / "tests/data/vllm-0.26.0-h200"
SOURCE = "recorded: 8B on an H200, one engine that serves five loads in turn"
LOADS = tuple(load.name for load in loads.LOADS)
SWEEP = "sweep-"
CACHE_TOKENS = json.loads((DATA / "engine.json").read_text(encoding="utf-8"))["kv_tokens"]


def recorded(path: Path = DATA / "steps.csv.gz") -> list[WatchedStep]:
    """Read the steps, in their order."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = csv.reader(lines)
        next(rows)
        return [WatchedStep(part, *map(int, numbers)) for part, *numbers in rows]


class Parts:
    """What prompts alone and decoding alone cost, in seconds, from the sweep of a recording.

    Linear between the points, extrapolated beyond the last. The empty step is one request that
    decodes with the least KV: it reads the weights once.
    """

    def __init__(self, steps: Iterable[WatchedStep]) -> None:
        self._steps = [step for step in steps if step.part.startswith(SWEEP)]

    @cached_property
    def _prompts(self) -> tuple[tuple[int, ...], dict[tuple[int, ...], float]]:
        found: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for step in self._steps:
            if step.context_requests == 1 and not step.generation_requests:
                found[step.context_tokens, step.context_past_tokens].append(step.seconds)
        sizes = tuple(sorted({size for size, _ in found}))
        return sizes, {key: median(times) for key, times in found.items()}

    @cached_property
    def _decoding(self) -> dict[tuple[int, ...], float]:
        found: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for step in self._steps:
            if step.generation_requests and not step.context_requests:
                mean = step.generation_kv_tokens / step.generation_requests
                kv = max(each for each in KV_TOKENS if each <= mean or each == KV_TOKENS[0])
                found[step.generation_requests, kv].append(step.seconds)
        table = {key: median(times) for key, times in found.items()}
        for writers in WRITERS:
            for before, kv in pairwise(KV_TOKENS):
                # The cache had no room for these: reading is what it is per token.
                if (writers, kv) not in table:
                    table[writers, kv] = _further(table, writers, before, kv)
        return table

    @property
    def nothing(self) -> float:
        """The cost of an empty step."""
        return self._decoding[WRITERS[0], KV_TOKENS[0]]

    def prompts(self, step: WatchedStep) -> float:
        """The cost of a step's prompts alone; several count as one with as much attention."""
        tokens = step.context_tokens
        if not tokens:
            return self.nothing
        sizes, table = self._prompts
        past = max(step.context_pairs / tokens - (tokens + 1) / 2, 0.0)
        return between(table, (sizes, PASTS), (max(tokens, sizes[0]), past))

    def decoding(self, step: WatchedStep) -> float:
        """The cost of its decoding alone."""
        writers = step.generation_requests
        if not writers:
            return self.nothing
        kv = max(step.generation_kv_tokens / writers, KV_TOKENS[0])
        return between(self._decoding, (WRITERS, KV_TOKENS), (writers, kv))


def _further(table: dict[tuple[int, ...], float], writers: int, before: int, kv: int) -> float:
    """Extrapolate to more KV by the price of a token of it at the largest batch that has it."""
    most = max(w for w, k in table if k == kv)
    each = (table[most, kv] - table[most, before]) / (most * (kv - before))
    return table[writers, before] + each * writers * (kv - before)


def scores() -> list[shares.LoadScore]:
    """Judge the shares of each load's last two thirds; all before them is learned from."""
    steps = recorded()
    parts = Parts(steps)
    found = []
    for way in shares.WAYS:
        split = StepSplit()
        for load in LOADS:
            seen = list(seen_steps([step for step in steps if step.part == load], parts))
            first = len(seen) // 3
            found.append(shares.judge(load, SOURCE, way, split, seen[:first], seen[first:]))
    return found


def seen_steps(steps: Sequence[WatchedStep], parts: Parts) -> Iterator[Seen]:
    """Yield consecutive steps of a load, as `bench.attribution` judges them."""
    unfinished = _unfinished(steps)
    left = 0
    for number, (step, after) in enumerate(zip(steps, unfinished, strict=True)):
        computed = max(left + step.context_tokens - after, 0)
        left = after
        yield _seen(number, step, computed, parts)


def _unfinished(steps: Sequence[WatchedStep]) -> list[int]:
    """Return the computed tokens of prompts that each step leaves unfinished.

    The next step that computes prompts continues them: no load has cached prompts.
    """
    found, after = [0] * len(steps), 0
    for number in range(len(steps) - 1, -1, -1):
        found[number] = after
        step = steps[number]
        after = step.context_past_tokens if step.context_tokens else 0
    return found


def _seen(number: int, step: WatchedStep, computed: int, parts: Parts) -> Seen:
    elapsed_ns = step.step_us * 1000
    prefill, decode, nothing = parts.prompts(step), parts.decoding(step), parts.nothing
    share, interference = float(bool(step.context_tokens)), 0.0
    if step.context_tokens and step.generation_requests:
        interference = step.seconds - prefill - decode + nothing
        adds = prefill - nothing + step.seconds - decode
        adds_decode = decode - nothing + step.seconds - prefill
        share = min(max(adds / (adds + adds_decode), 0.0), 1.0)
    told = Step(
        t_ns=(step.t_us + step.step_us) * 1000,
        elapsed_ns=elapsed_ns,
        sequence=number + 1,
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        generation_requests=step.generation_requests,
        generation_tokens=step.generation_requests,
        computed_tokens=computed,
        running=step.running,
        waiting=step.waiting,
        kv_usage_ratio=(step.generation_kv_tokens + step.context_past_tokens + step.context_tokens)
        / CACHE_TOKENS,
    )
    return Seen(
        step=told,
        fpm=told._replace(
            computed_tokens=step.context_tokens,
            cached_tokens=step.context_past_tokens,
            decode_kv_tokens=step.generation_kv_tokens,
        ),
        seconds=step.seconds,
        share=share,
        interference_seconds=interference,
        full=StepWork(
            step.context_tokens,
            step.context_pairs,
            step.generation_requests,
            step.generation_kv_tokens,
        ),
        reading=step.context_requests,
        running=step.running,
        first_tokens=0,
        gaps_ns={},
    )
