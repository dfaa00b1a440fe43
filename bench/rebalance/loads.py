"""Made-up days of one model on eight GPUs, on which now prefill and now decode needs more of them.

The engines that each phase needs are drawn, with swings over hours, shifts and wandering; lengths
of prompts and outputs follow from them. On some loads both go up and down together, and no split
but half and half is ever better. Two days before each are available to forecast from.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from bench.plan.days import HISTORY_DAYS, MINUTES, Day, Served, drawn, wander

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.simulator.engine.hardware import LLAMA_8B

ENGINES = 8
SERVED = Served(LLAMA_8B, 1, Targets(5.0, 0.03), 5.0, 20_000.0, 500.0)
"""One GPU an engine: eight engines a node."""

# By the price table a prompt of P thousand tokens takes an engine (a + b P) P seconds, and an
# output of O tokens the part c O (P + O/2) of its cache's time.
_READ, _READ_LONGER, _WRITE = 0.0204, 0.00068, 7.36e-5


class LoadKind(StrEnum):
    """How the load changes over the day."""

    ALTERNATING = "reads by day, writes by night"
    SHIFTING = "shifts of some hours"
    WANDERING = "wanders"
    TOGETHER = "both together"
    CONSTANT = "constant"


KINDS = (LoadKind.ALTERNATING, LoadKind.SHIFTING, LoadKind.WANDERING, LoadKind.TOGETHER)


def kind_of(seed: int) -> LoadKind:
    """Return the kind of a seed: every kind in turn."""
    return KINDS[seed % len(KINDS)]


def make_load(seed: int, kind: LoadKind, minutes: int) -> Day:
    """Return the load of a seed; the day itself is `minutes` long."""
    rng = np.random.default_rng(7000 + seed)
    length = HISTORY_DAYS * MINUTES + minutes
    lean, level = _lean(rng, kind, length), _level(rng, kind, length)
    each = ENGINES / 2 * 0.76
    prompts, outputs = _lengths(each * (1 + lean), each * (1 - lean))
    rates = (
        SERVED.requests_per_second * level * wander(rng, length, 0.05),
        prompts * wander(rng, length, 0.03),
        outputs * wander(rng, length, 0.03),
    )
    return drawn(rng, SERVED, *rates, length - minutes)


def _lean(rng: np.random.Generator, kind: LoadKind, length: int) -> Floats:
    """Return how much more than half of the work is prefill's, by minute: from -0.6 to 0.6."""
    hours = np.arange(length) / 60
    if kind is LoadKind.ALTERNATING:
        wave = 1.6 * np.sin(2 * np.pi * (hours - rng.uniform(0, 24)) / 24)
        return rng.uniform(0.4, 0.6) * np.clip(wave, -1, 1)
    if kind is LoadKind.WANDERING:
        return np.clip(0.4 * np.log(wander(rng, length, 1.0, 4.0)), -0.6, 0.6)
    if kind is LoadKind.SHIFTING:
        return shifts(rng, length, within=4, most_hours=5, most=0.6)
    return np.zeros(length)


def shifts(
    rng: np.random.Generator, length: int, *, within: float, most_hours: float, most: float
) -> Floats:
    """Return shifts of either sign, by minute: from 0.35 to `most`, for `most_hours` at most.

    The first begins within so many hours; as many may lie between two.
    """
    hours, found = np.arange(length) / 60, np.zeros(length)
    at = rng.uniform(0, within)
    while at < hours[-1]:
        lasts, ramp = rng.uniform(1.5, most_hours), rng.uniform(5, 30) / 60
        weight = np.clip((hours - at) / ramp, 0, 1) * np.clip((at + lasts - hours) / ramp, 0, 1)
        found += weight * rng.choice((-1, 1)) * rng.uniform(0.35, most)
        at += lasts + rng.uniform(0.5, within)
    return found


def _level(rng: np.random.Generator, kind: LoadKind, length: int) -> Floats:
    """Return the amount of work, by minute."""
    if kind is LoadKind.CONSTANT:
        return np.full(length, rng.uniform(0.6, 1.1))
    if kind is not LoadKind.TOGETHER:
        return np.ones(length)
    hours = np.arange(length) / 60
    return 0.85 + 0.2 * np.sin(2 * np.pi * (hours - rng.uniform(0, 24)) / 24)


def reading_seconds(prompt_tokens: float) -> float:
    """Return a prompt's time on a prefill engine."""
    thousands = prompt_tokens / 1000
    return _READ * thousands + _READ_LONGER * thousands**2


def writing_seconds(prompt_tokens: float, output_tokens: float) -> float:
    """Return an output's share of the time of a decode engine's cache."""
    return _WRITE * output_tokens * (prompt_tokens + output_tokens / 2) / 1000


def _lengths(prefill: Floats, decode: Floats) -> tuple[Floats, Floats]:
    """Return the prompt and output tokens that just occupy these engines of each role."""
    rate = SERVED.requests_per_second
    read = prefill / rate
    thousands = (np.sqrt(_READ**2 + 4 * _READ_LONGER * read) - _READ) / (2 * _READ_LONGER)
    write = decode / rate / _WRITE
    outputs = (np.sqrt(thousands**2 + 2 * write / 1000) - thousands) * 1000
    return thousands * 1000, outputs
