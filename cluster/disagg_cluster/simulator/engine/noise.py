"""How much longer or shorter than priced an engine's steps take: noise, drift and faults."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Noise:
    """What a price does not know; all 0 for an engine that runs like clockwork.

    `step_ratio` is the standard deviation of one step's length, `drift_ratio` how far the mean
    swings to either side over `drift_period_seconds`.
    """

    step_ratio: float = 0.0
    drift_ratio: float = 0.0
    drift_period_seconds: float = 3600.0


class Pace:
    """The factor on the length of an engine's steps; `slowdown` is what faults make of it."""

    def __init__(self, noise: Noise, rng: random.Random) -> None:
        self.slowdown = 1.0
        self._noise = noise
        self._rng = rng
        self._phase = rng.uniform(0, 2 * math.pi)

    def factor(self, now_ns: int, steps: int) -> float:
        """The factor on the mean length of `steps` steps that begin now."""
        noise, factor = self._noise, self.slowdown
        if noise.drift_ratio:
            turns = now_ns / _NS / noise.drift_period_seconds
            factor *= 1 + noise.drift_ratio * math.sin(2 * math.pi * turns + self._phase)
        if noise.step_ratio:
            # The mean of n independent lengths strays √n times less than one.
            stray = self._rng.gauss(0.0, noise.step_ratio) / math.sqrt(steps)
            factor *= max(0.1, 1 + stray)
        return factor
