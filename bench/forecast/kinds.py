"""Made-up loads of kinds that no recorded trace has, from fixed seeds.

They were defined before the forecaster was fitted to anything, and it does not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]
MINUTES = 60
FIVE_MINUTES = 300
TEN_MINUTES = 600
_DAY = 86_400


def kinds() -> Iterator[tuple[str, int, Floats, Floats]]:
    """Yield name, step in seconds, prompt and output tokens a second."""
    rng = np.random.default_rng(7)
    for name, (step, days, make) in _KINDS.items():
        prompt, output = make(rng, days * _DAY // step, _DAY // step)
        yield name, step, np.maximum(prompt, 0.0), np.maximum(output, 0.0)


def _noise(rng: np.random.Generator, length: int, memory: float, size: float) -> Floats:
    """Return autocorrelated multiplicative noise: exp of an AR(1)."""
    steps = rng.normal(0.0, size, length)
    for i in range(1, length):
        steps[i] += memory * steps[i - 1]
    return np.exp(steps)


def _quiet_weekends(rng: np.random.Generator, length: int, day: int) -> Pair:
    t = np.arange(length) / day
    shape = np.exp(1.2 * np.sin(2 * np.pi * (t - 0.3)))
    shape *= np.where(t.astype(int) % 7 >= 5, 0.3, 1.0)
    return (
        5000 * shape * _noise(rng, length, 0.9, 0.06) + 50,
        1200 * shape * _noise(rng, length, 0.9, 0.08) + 20,
    )


def _sparse_weeks(rng: np.random.Generator, length: int, day: int) -> Pair:
    t = np.arange(length) / day
    shape = np.exp(np.sin(2 * np.pi * (t - 0.35)) + 0.4 * np.sin(4 * np.pi * t))
    shape *= np.where(t.astype(int) % 7 >= 5, 0.35, 1.0)
    requests = rng.poisson(2 * shape * _noise(rng, length, 0.98, 0.03) * 60) / 60
    return (
        requests * 900 * np.exp(rng.normal(0, 0.1, length)),
        requests * 250 * np.exp(rng.normal(0, 0.1, length)),
    )


def _output_shifts(rng: np.random.Generator, length: int, _day: int) -> Pair:
    level = np.ones(length)
    for start in rng.integers(100, length, 6):
        level[start:] *= rng.choice([0.5, 1.8, 2.2, 0.6])
    return (
        3000 * _noise(rng, length, 0.8, 0.08),
        800 * level * _noise(rng, length, 0.8, 0.08),
    )


def _on_off(rng: np.random.Generator, length: int, _day: int) -> Pair:
    on = np.zeros(length)
    at, state = 0, 1.0
    while at < length:
        spell = int(rng.exponential(30)) + 3
        on[at : at + spell] = state
        at, state = at + spell, 1.0 - state
    return (
        4000 * on * np.exp(rng.normal(0, 0.1, length)),
        900 * on * np.exp(rng.normal(0, 0.1, length)),
    )


def _near_constant(rng: np.random.Generator, length: int, _day: int) -> Pair:
    return 10_000 + rng.normal(0, 50, length), 2000 + rng.normal(0, 10, length)


def _drifting(rng: np.random.Generator, length: int, _day: int) -> Pair:
    along = np.arange(length)
    return (
        1000 + 5 * along + rng.normal(0, 120, length),
        3000 * np.exp(-along / length) * _noise(rng, length, 0.9, 0.05),
    )


def _heavy_tailed(rng: np.random.Generator, length: int, _day: int) -> Pair:
    bursts = rng.pareto(1.6, length) * 400 * (rng.random(length) < 0.3)
    return (
        500 + bursts + 0.5 * np.roll(bursts, 1),
        3000 + 8 * bursts**0.8 + 300 * rng.standard_t(2.5, length),
    )


def _decode_heavy(rng: np.random.Generator, length: int, day: int) -> Pair:
    t = np.arange(length) / day
    return (
        800 * (1.3 + np.sin(2 * np.pi * t)) * _noise(rng, length, 0.9, 0.1),
        6000 * (1.5 + np.sin(2 * np.pi * (t - 0.05))) * _noise(rng, length, 0.95, 0.06),
    )


def _random_walk(rng: np.random.Generator, length: int, _day: int) -> Pair:
    return (
        2000 * np.exp(0.7 * np.cumsum(rng.normal(0, 0.03, length))),
        900 * np.exp(0.7 * np.cumsum(rng.normal(0, 0.05, length))),
    )


def _every_six_hours(rng: np.random.Generator, length: int, day: int) -> Pair:
    spikes = np.where(np.arange(length) % (day // 4) < day // 48, 6.0, 1.0)
    return (
        700 * spikes * np.exp(rng.normal(0, 0.15, length)),
        200 * spikes * np.exp(rng.normal(0, 0.15, length)),
    )


_KINDS: dict[str, tuple[int, int, Callable[[np.random.Generator, int, int], Pair]]] = {
    "quiet weekends": (TEN_MINUTES, 28, _quiet_weekends),
    "sparse weeks": (MINUTES, 14, _sparse_weeks),
    "output shifts": (TEN_MINUTES, 10, _output_shifts),
    "on and off": (TEN_MINUTES, 10, _on_off),
    "near constant": (TEN_MINUTES, 7, _near_constant),
    "drifting": (TEN_MINUTES, 10, _drifting),
    "heavy-tailed": (TEN_MINUTES, 10, _heavy_tailed),
    "decode-heavy": (FIVE_MINUTES, 9, _decode_heavy),
    "random walk": (TEN_MINUTES, 8, _random_walk),
    "every six hours": (FIVE_MINUTES, 8, _every_six_hours),
}
