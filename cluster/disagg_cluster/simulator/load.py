"""What users ask for: how many requests a second, of which lengths, and how that moves."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from disagg_cluster.simulator.engine.sequence import Prefix, Request

_NS = 1_000_000_000
_LONGEST_PAUSE_SECONDS = 1.0  # an arrival drawn at a low rate must not outlive a change of rate


@dataclass(frozen=True, slots=True)
class Mix:
    """What arrives at one moment: requests a second, and the mean tokens of each."""

    requests_per_second: float
    prompt_tokens: float
    output_tokens: float


class Shape(Protocol):
    """A load over time."""

    def rate(self, t_seconds: float) -> Mix:
        """The mix `t_seconds` after the start."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A load that stays as it is."""

    mix: Mix

    def rate(self, t_seconds: float) -> Mix:
        """The same mix at all times."""
        return self.mix


@dataclass(frozen=True, slots=True)
class Shifting:
    """A load that swings between two mixes; it begins half-way, on its way to `high`.

    In between all three figures move geometrically, so that the ratio of the phases passes
    through its whole range evenly and does not jump at one end.
    """

    high: Mix
    low: Mix
    period_seconds: float

    def rate(self, t_seconds: float) -> Mix:
        """The mix `t_seconds` after the start."""
        weight = (1 + math.sin(2 * math.pi * t_seconds / self.period_seconds)) / 2
        high, low = self.high, self.low
        return Mix(
            _between(low.requests_per_second, high.requests_per_second, weight),
            round(_between(low.prompt_tokens, high.prompt_tokens, weight)),
            round(_between(low.output_tokens, high.output_tokens, weight)),
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """How single requests differ from the mean.

    Lengths are log-normal; the spreads are those of the logarithm, 0 for all alike. A part
    `reuse_ratio` of the requests begins with one of `prefixes` prefixes of `prefix_tokens`.
    """

    prompt_spread: float = 0.0
    output_spread: float = 0.0
    reuse_ratio: float = 0.0
    prefixes: int = 16
    prefix_tokens: int = 512
    longest_tokens: int = 100_000


class Arrivals:
    """Draws requests one after the other: Poisson arrivals at the rate of the moment."""

    def __init__(self, shape: Shape, lengths: Lengths, rng: random.Random, start_ns: int) -> None:
        self._shape = shape
        self._lengths = lengths
        self._rng = rng
        self._start_ns = start_ns
        self._drawn = 0

    def draw(self, now_ns: int) -> tuple[int, Request | None]:
        """Return when to draw again, and the request that arrives then, if one does."""
        mix = self._shape.rate((now_ns - self._start_ns) / _NS)
        pause_seconds = math.inf
        if mix.requests_per_second > 0:
            pause_seconds = self._rng.expovariate(mix.requests_per_second)
        if pause_seconds > _LONGEST_PAUSE_SECONDS:
            # Cut short and drawn anew, which changes nothing: the process has no memory.
            return now_ns + round(_LONGEST_PAUSE_SECONDS * _NS), None
        t_ns = now_ns + round(pause_seconds * _NS)
        return t_ns, self._request(mix, t_ns)

    def _request(self, mix: Mix, t_ns: int) -> Request:
        lengths, rng = self._lengths, self._rng
        self._drawn += 1
        prompt_tokens = self._length(mix.prompt_tokens, lengths.prompt_spread)
        prefix = None
        if lengths.reuse_ratio and rng.random() < lengths.reuse_ratio:
            prefix = Prefix(rng.randrange(lengths.prefixes), lengths.prefix_tokens)
            prompt_tokens = max(prompt_tokens, lengths.prefix_tokens + 1)
        return Request(
            number=self._drawn,
            arrived_ns=t_ns,
            prompt_tokens=prompt_tokens,
            output_tokens=self._length(mix.output_tokens, lengths.output_spread),
            prefix=prefix,
        )

    def _length(self, mean_tokens: float, spread: float) -> int:
        tokens = mean_tokens
        if spread:
            # The mean of a log-normal is exp(spread² / 2) times its median.
            tokens *= self._rng.lognormvariate(-spread * spread / 2, spread)
        return min(max(1, round(tokens)), self._lengths.longest_tokens)


def _between(low: float, high: float, weight: float) -> float:
    return math.exp((1 - weight) * math.log(low) + weight * math.log(high))
