"""Engines priced by tables or data sheets, and their true knees and batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cluster.simulator.engine.hardware import GPUS, MODELS
from disagg_cluster.simulator.engine.links import LinkError
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Roofline
from disagg_cluster.simulator.prices.shipped import named_costs, table_names
from disagg_cluster.tune.knee_search import knee_estimate
from disagg_cluster.tune.prefill_prober import LEAST_SAMPLES, MOST_SAMPLES, step_shape
from disagg_cluster.tune.probed import SizeProbe, TimedSteps, size_grid
from disagg_exporter.capacity.curves.limits import KNEE_SHARE

SMALLEST, LARGEST = 16, 8192
GRID = size_grid(SMALLEST, LARGEST)
BATCHES = size_grid(1, 256)
PROMPTS = (512, 2048, 8192)
CONTEXTS = (512, 2048, 8192)
_GAP_SECONDS = 0.0005
_FINE = 1.02
_SURE_ENOUGH = 0.01
_MEDIAN_FACTOR = 1.25
_QUIET_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class PricedEngine:
    """An engine by name; `is_table` if its steps were measured."""

    name: str
    costs: CostModel
    is_table: bool

    def prefill_seconds(self, size: int, prompt_tokens: int) -> float:
        """Return the time of a prefill step by size, composed of prompts as the tuner does."""
        shape = step_shape(size, prompt_tokens)
        pairs = shape.prompts * shape.tokens * (shape.tokens + 1) // 2
        price = self.costs.price(BatchWork(shape.size, pairs, shape.size))
        return (price.seconds + _GAP_SECONDS) * size / shape.size

    def decode_seconds(self, batch: int, context_tokens: int) -> float:
        """Return the time of a step that writes a token of each request."""
        work = BatchWork(writers=batch, writers_kv_tokens=batch * context_tokens)
        return self.costs.price(work).seconds + _GAP_SECONDS

    def knee(self, prompt_tokens: int) -> float | None:
        """Return the knee that the product reads off all sizes of the grid, without noise.

        None if it concludes none: the rate rises to the end.
        """
        probes = (
            SizeProbe(size, (self.prefill_seconds(size, prompt_tokens),) * _QUIET_SAMPLES)
            for size in GRID
        )
        found = knee_estimate(TimedSteps(tuple(probes)).points)
        return found.limit.knee_tokens if found and found.limit else None

    def first_size(self, prompt_tokens: int) -> float:
        """Return the first size at all, jags included, with nine tenths of the best rate."""
        sizes, size = [], float(SMALLEST)
        while size < LARGEST:
            sizes.append(round(size))
            size *= _FINE
        rates = {n: n / self.prefill_seconds(n, prompt_tokens) for n in [*sizes, LARGEST]}
        best = max(rates.values())
        return next(n for n, rate in rates.items() if rate >= KNEE_SHARE * best)

    def batch(self, context_tokens: int, target_seconds: float) -> int | None:
        """Return the largest batch of all within a target; None if no batch is."""
        within = [
            batch
            for batch in range(1, BATCHES[-1] + 1)
            if self.decode_seconds(batch, context_tokens) <= target_seconds
        ]
        return max(within, default=None)


@dataclass(slots=True)
class NoisyEngine:
    """Times steps as the prober does, until the median is certain; counts the cost."""

    engine: PricedEngine
    noise_ratio: float
    rng: random.Random
    probes: int = 0
    seconds: float = 0.0
    _needed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        needed = (_MEDIAN_FACTOR * self.noise_ratio / _SURE_ENOUGH) ** 2
        self._needed = min(max(round(needed), LEAST_SAMPLES), MOST_SAMPLES)

    def prefill(self, size: int, prompt_tokens: int) -> SizeProbe:
        """Time steps of a size."""
        return self._timed(size, self.engine.prefill_seconds(size, prompt_tokens), self._needed)

    def decode(self, batch: int, context_tokens: int, samples: int) -> SizeProbe:
        """Time steps of a batch."""
        return self._timed(batch, self.engine.decode_seconds(batch, context_tokens), samples)

    def _timed(self, size: int, seconds: float, samples: int) -> SizeProbe:
        factors = (max(self.rng.gauss(1, self.noise_ratio), 0.1) for _ in range(samples))
        probe = SizeProbe(size, tuple(seconds * factor for factor in factors))
        self.probes += 1
        self.seconds += sum(probe.seconds)
        return probe


def engines() -> Iterator[PricedEngine]:
    """Yield all shipped tables, and every model on every GPU by data sheets."""
    for name in table_names():
        yield PricedEngine(name, named_costs(name), is_table=True)
    for model in MODELS:
        for gpu in GPUS:
            for gpus in (1, 4):
                try:
                    costs = Roofline(gpu, model, gpus)
                    costs.kv_tokens()
                except (LinkError, ValueError):
                    continue
                short = f"{model.name.rpartition('/')[2]} on {gpus} {gpu.name}"
                yield PricedEngine(f"{short}, data sheets", costs, is_table=False)
