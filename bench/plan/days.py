"""Made-up days of three models on one fleet: arrivals by minute and single requests.

Loads swing over the day, each model at its own hours, wander, and shift: prompts or outputs become
longer for hours, users switch from one model to another, a burst comes and goes. Two days before
each are available to forecast from. The planner knows none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.capacity.priced_costs import PricedCosts, priced_costs
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.simulator.engine.hardware import GPT_OSS_120B, H100, LLAMA_8B, LLAMA_70B, Model

HISTORY_DAYS = 2
MINUTES = 1440
DISPERSION = 0.5
STEP_TOKENS = 4096
TRANSFER_BYTES_PER_SECOND = 40e9


@dataclass(frozen=True, slots=True)
class Served:
    """A model, the GPUs of one engine, its targets, and its mean load."""

    model: Model
    gpus: int
    targets: Targets
    requests_per_second: float
    prompt_tokens: float
    output_tokens: float

    @property
    def name(self) -> str:
        """The model's name without the organisation."""
        return self.model.name.rpartition("/")[2]

    def costs(self) -> PricedCosts:
        """Return step costs by the shipped table of H100s."""
        return priced_costs(H100, self.model, self.gpus, max_num_batched_tokens=STEP_TOKENS)

    @property
    def transfer_seconds(self) -> float:
        """Return the transfer time of a mean prompt's KV."""
        return self.prompt_tokens * self.model.kv_bytes_per_token / TRANSFER_BYTES_PER_SECOND


SERVED = (
    Served(LLAMA_70B, 4, Targets(5.0, 0.05), 3.0, 9000.0, 700.0),
    Served(GPT_OSS_120B, 2, Targets(5.0, 0.025), 4.0, 18_000.0, 1200.0),
    Served(LLAMA_8B, 1, Targets(5.0, 0.03), 5.0, 12_000.0, 600.0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests of one model on the day, in order: arrival times and lengths."""

    seconds: Floats
    prompt_tokens: Floats
    output_tokens: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """One model's load: by minute, the days before included, and the day's single requests.

    `requests`, `prompt_tokens` and `output_tokens` are rates per second, `[minute]`.
    """

    served: Served
    requests: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    arrivals: Arrivals


def make_day(seed: int, minutes: int = MINUTES) -> tuple[Day, ...]:
    """Return the models' loads of one seed; the day itself is `minutes` long."""
    rng = np.random.default_rng(1000 + seed)
    length = HISTORY_DAYS * MINUTES + minutes
    rates = [_rates(rng, served, length) for served in SERVED]
    # Users switch from one model to another for some hours.
    giver, taker = rng.choice(len(SERVED), 2, replace=False)
    start = HISTORY_DAYS * MINUTES + int(rng.integers(0, minutes))
    span = slice(start, start + int(rng.integers(120, 420)))
    rates[giver][0][span] *= 0.6
    rates[taker][0][span] *= 1.5
    return tuple(
        drawn(rng, served, *of, length - minutes) for served, of in zip(SERVED, rates, strict=True)
    )


def _rates(rng: np.random.Generator, served: Served, length: int) -> tuple[Floats, Floats, Floats]:
    """Return requests a second, and mean lengths, by minute."""
    hours = np.arange(length) / 60
    swing = np.sin(2 * np.pi * (hours - rng.uniform(0, 24)) / 24)
    requests = served.requests_per_second * np.exp(0.55 * swing) * wander(rng, length, 0.08)
    prompt = served.prompt_tokens * wander(rng, length, 0.05)
    output = served.output_tokens * wander(rng, length, 0.05)
    days = length / MINUTES
    return (
        requests * _shifts(rng, length, 2 * days, (1.3, 2.0), (20, 90)),
        prompt * _shifts(rng, length, days, (1.3, 1.8), (90, 300)),
        output * _shifts(rng, length, days, (1.3, 1.8), (90, 300)),
    )


def wander(rng: np.random.Generator, length: int, size: float, hours: float = 1.0) -> Floats:
    """Return a random factor around 1, with a correlation time in hours and a size."""
    memory = np.exp(-1 / (60 * hours))
    steps = rng.normal(0.0, size * np.sqrt(1 - memory**2), length)
    for i in range(1, length):
        steps[i] += memory * steps[i - 1]
    factors: Floats = np.exp(steps)
    return factors


def _shifts(
    rng: np.random.Generator,
    length: int,
    mean_count: float,
    factors: tuple[float, float],
    minutes: tuple[float, float],
) -> Floats:
    """Return factors that last a while, with ramps of 2 to 20 minutes; overlaps take the larger."""
    at = np.arange(length)
    found = np.ones(length)
    for _ in range(int(rng.poisson(mean_count))):
        start, lasts = rng.uniform(0, length), rng.uniform(*minutes)
        ramp = rng.uniform(2, 20)
        weight = np.clip((at - start) / ramp, 0, 1) * np.clip((start + lasts - at) / ramp, 0, 1)
        found = np.maximum(found, rng.uniform(*factors) ** weight)
    return found


def drawn(
    rng: np.random.Generator,
    served: Served,
    rates: Floats,
    prompt: Floats,
    output: Floats,
    history: int,
) -> Day:
    """Draw requests at rates and mean lengths by minute, the first `history` before the day."""
    counts = rng.poisson(rates * 60)
    minute = np.repeat(np.arange(len(rates)), counts)
    spread = np.sqrt(np.log1p(DISPERSION))
    prompts, outputs = (
        np.maximum(1.0, np.round(of[minute] * rng.lognormal(-(spread**2) / 2, spread, len(minute))))
        for of in (prompt, output)
    )
    # No request needs a context that no engine of the model could hold.
    prompts, outputs = np.minimum(prompts, 100_000.0), np.minimum(outputs, 8_000.0)
    seconds = (minute + rng.random(len(minute)) - history) * 60.0
    order = np.argsort(seconds)
    on_day = order[seconds[order] >= 0]
    return Day(
        served,
        counts / 60,
        np.bincount(minute, prompts, len(rates)) / 60,
        np.bincount(minute, outputs, len(rates)) / 60,
        Arrivals(seconds[on_day], prompts[on_day], outputs[on_day]),
    )
