"""Made-up days of two kinds of requests at once, each needing another split of the pools.

The mean request is like neither kind: long prompts with short outputs beside short prompts with
long outputs, or long with long beside short with short, or only prompts differ. As for the other
loads, the engines that each phase needs are drawn; the rates of each kind follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from bench.plan.days import HISTORY_DAYS, MINUTES, Arrivals, Day, drawn, wander
from bench.rebalance.loads import ENGINES, SERVED, reading_seconds, shifts, writing_seconds

from disagg_cluster.planner.history.load_series import Floats


class MixedKind(StrEnum):
    """How the two kinds change over the day."""

    STEADY = "two kinds, steady"
    SWINGING = "two kinds, swinging"
    TURNING = "two kinds, in turn"
    PROMPTS = "two lengths of prompts"
    ALIKE = "long with long, short with short"
    BURSTS = "one kind in bursts"
    TINY = "two kinds, hardly any"


MIXED_KINDS = tuple(MixedKind)


@dataclass(frozen=True, slots=True)
class Population:
    """Requests of one kind: mean lengths."""

    prompt_tokens: float
    output_tokens: float

    @property
    def engine_seconds(self) -> tuple[float, float]:
        """Return the seconds that one takes of a prefill and of a decode engine."""
        return (
            float(reading_seconds(self.prompt_tokens)),
            float(writing_seconds(self.prompt_tokens, self.output_tokens)),
        )


def mixed_kind_of(seed: int) -> MixedKind:
    """Return the kind of a seed: every kind in turn."""
    return MIXED_KINDS[seed % len(MIXED_KINDS)]


def make_mixed_load(seed: int, kind: MixedKind, minutes: int) -> Day:
    """Return the load of a seed; the day itself is `minutes` long."""
    rng = np.random.default_rng(9000 + seed)
    length = HISTORY_DAYS * MINUTES + minutes
    populations = _populations(rng, kind)
    lean, level = _lean(rng, kind, length), _level(rng, kind, length)
    each = ENGINES / 2 * 0.76 * level
    # Prompts of two lengths queue longer than those of one.
    desired = np.stack([each * (1 + lean) * 0.88, each * (1 - lean)])
    rates = _rates(populations, desired)
    if kind is MixedKind.BURSTS:
        rates[int(rng.integers(2))] *= _bursts(rng, length)
    drawn_each = [
        drawn(
            rng,
            SERVED,
            rate * wander(rng, length, 0.05),
            of.prompt_tokens * wander(rng, length, 0.03),
            of.output_tokens * wander(rng, length, 0.03),
            length - minutes,
        )
        for of, rate in zip(populations, rates, strict=True)
    ]
    return blended(*drawn_each)


def _populations(rng: np.random.Generator, kind: MixedKind) -> tuple[Population, Population]:
    if kind is MixedKind.PROMPTS:
        output = rng.uniform(300, 500)
        return (
            Population(rng.uniform(16_000, 28_000), output),
            Population(rng.uniform(3000, 6000), output * rng.uniform(1.5, 2.5)),
        )
    if kind is MixedKind.ALIKE:
        return (
            Population(rng.uniform(20_000, 35_000), rng.uniform(700, 1200)),
            Population(rng.uniform(6000, 12_000), rng.uniform(30, 90)),
        )
    return (
        Population(rng.uniform(15_000, 40_000), rng.uniform(40, 150)),
        Population(rng.uniform(500, 2000), rng.uniform(2000, 4000)),
    )


def _lean(rng: np.random.Generator, kind: MixedKind, length: int) -> Floats:
    """Return how much more than half of the work is prefill's, by minute."""
    hours = np.arange(length) / 60
    if kind in (MixedKind.SWINGING, MixedKind.PROMPTS):
        wave = 1.4 * np.sin(2 * np.pi * (hours - rng.uniform(0, 24)) / 24)
        return rng.uniform(0.35, 0.55) * np.clip(wave, -1, 1)
    if kind is MixedKind.TURNING:
        return shifts(rng, length, within=3, most_hours=4, most=0.55)
    # Half of the steady ones are served best by half and half.
    return np.full(length, rng.choice((0.0, rng.uniform(-0.35, 0.35))))


def _level(rng: np.random.Generator, kind: MixedKind, length: int) -> Floats:
    if kind is MixedKind.TINY:
        return np.full(length, rng.uniform(0.02, 0.06))
    if kind is MixedKind.BURSTS:
        return np.full(length, rng.uniform(0.75, 0.9))
    return np.full(length, rng.uniform(0.85, 1.05))


def _rates(populations: tuple[Population, Population], desired: Floats) -> Floats:
    """Return requests a second of either kind that just occupy the engines of each role.

    Where no rates do, return the nearest: at least a twentieth of the rate that would do it alone.
    """
    taken = np.array([of.engine_seconds for of in populations]).T
    least = 0.05 * (desired.sum(axis=0) / taken.sum(axis=0)[:, None])
    found: Floats = np.maximum(np.linalg.solve(taken, desired), least)
    return found


def _bursts(rng: np.random.Generator, length: int) -> Floats:
    """Return a factor: for some minutes, several times a day, far more requests arrive."""
    at = np.arange(length)
    found = np.ones(length)
    for _ in range(int(rng.poisson(6 * length / MINUTES))):
        start, lasts = rng.uniform(0, length), rng.uniform(8, 45)
        weight = np.clip((at - start) / 2, 0, 1) * np.clip((start + lasts - at) / 2, 0, 1)
        found = np.maximum(found, rng.uniform(1.3, 2.0) ** weight)
    return found


def blended(one: Day, other: Day) -> Day:
    """Return both loads as one."""
    seconds = np.concatenate([one.arrivals.seconds, other.arrivals.seconds])
    order = np.argsort(seconds, kind="stable")
    arrivals = Arrivals(
        seconds[order],
        *(
            np.concatenate([getattr(one.arrivals, name), getattr(other.arrivals, name)])[order]
            for name in ("prompt_tokens", "output_tokens")
        ),
    )
    return replace(
        one,
        requests=one.requests + other.requests,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        arrivals=arrivals,
    )
