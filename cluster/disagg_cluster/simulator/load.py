"""Load of users: requests per second, their lengths, and how these change over time.

Recorded loads are traces in the form of CSV text: columns `t_s, requests_per_s,
prompt_tokens_per_s, output_tokens_per_s` (others are ignored), one row per step, the steps equally
long. Each row is what arrived in the step that begins at `t_s`.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from disagg_cluster.simulator.engine.batch import Prefix, Request
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import SECOND_NS

_LONGEST_PAUSE_SECONDS = 1.0  # an arrival drawn at a low rate must not outlive a change of rate


@dataclass(frozen=True, slots=True)
class Mix:
    """Load at one moment: requests per second, and the mean tokens of each."""

    requests_per_second: float
    prompt_tokens: float
    output_tokens: float


class LoadOverTime(Protocol):
    """A load over time."""

    def rate(self, t_seconds: float) -> Mix:
        """Return the mix `t_seconds` after the start."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant load."""

    mix: Mix

    def rate(self, t_seconds: float) -> Mix:
        """Return the same mix at all times."""
        return self.mix


@dataclass(frozen=True, slots=True)
class Shifting:
    """A load that oscillates between two mixes; it begins half-way, towards `high`.

    In between all three figures change geometrically, so that the ratio of the phases passes
    through its whole range evenly and does not jump at one end.
    """

    high: Mix
    low: Mix
    period_seconds: float

    def rate(self, t_seconds: float) -> Mix:
        """Return the mix `t_seconds` after the start."""
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

    Lengths are log-normal; the spreads are those of the logarithm, 0 for all alike. A share
    `reuse_ratio` of the requests begins with one of `prefixes` prefixes of `prefix_tokens`. A share
    `giant_ratio` has a prompt of `giant_tokens`, independent of the mean. Outputs are
    `output_factor` times as long as the load says.
    """

    prompt_spread: float = 0.0
    output_spread: float = 0.0
    reuse_ratio: float = 0.0
    prefixes: int = 16
    prefix_tokens: int = 512
    longest_tokens: int = 100_000
    giant_ratio: float = 0.0
    giant_tokens: int = 0
    output_factor: float = 1.0


class Arrivals:
    """Draws requests one after the other: Poisson arrivals at the current rate.

    Faults change `factor`, on the rate, and `lengths`.
    """

    def __init__(
        self, shape: LoadOverTime, lengths: Lengths, rng: random.Random, start_ns: int
    ) -> None:
        self.factor = 1.0
        self.lengths = lengths
        self._shape = shape
        self._rng = rng
        # Of their own: the other requests are the same with and without very long ones.
        self._giants = random.Random(repr(rng.getstate()))
        self._start_ns = start_ns
        self._drawn = 0

    def draw(self, now_ns: int) -> tuple[int, Request | None]:
        """Return when to draw again, and the request that arrives then, if any."""
        mix = self._shape.rate((now_ns - self._start_ns) / SECOND_NS)
        pause_seconds, rate = math.inf, mix.requests_per_second * self.factor
        if rate > 0:
            pause_seconds = self._rng.expovariate(rate)
        if pause_seconds > _LONGEST_PAUSE_SECONDS:
            # Cut short and drawn again, which changes nothing: the process has no memory.
            return now_ns + round(_LONGEST_PAUSE_SECONDS * SECOND_NS), None
        t_ns = now_ns + round(pause_seconds * SECOND_NS)
        return t_ns, self._request(mix, t_ns)

    def _request(self, mix: Mix, t_ns: int) -> Request:
        lengths, rng = self.lengths, self._rng
        self._drawn += 1
        prompt_tokens = self._length(mix.prompt_tokens, lengths.prompt_spread)
        if lengths.giant_ratio and self._giants.random() < lengths.giant_ratio:
            prompt_tokens = lengths.giant_tokens
        prefix = None
        if lengths.reuse_ratio and rng.random() < lengths.reuse_ratio:
            prefix = Prefix(rng.randrange(lengths.prefixes), lengths.prefix_tokens)
            prompt_tokens = max(prompt_tokens, lengths.prefix_tokens + 1)
        return Request(
            number=self._drawn,
            arrived_ns=t_ns,
            prompt_tokens=prompt_tokens,
            output_tokens=self._length(
                mix.output_tokens * lengths.output_factor, lengths.output_spread
            ),
            prefix=prefix,
        )

    def _length(self, mean_tokens: float, spread: float) -> int:
        tokens = mean_tokens
        if spread:
            # The mean of a log-normal is exp(spread² / 2) times its median.
            tokens *= self._rng.lognormvariate(-spread * spread / 2, spread)
        return min(max(1, round(tokens)), self.lengths.longest_tokens)


def _between(low: float, high: float, weight: float) -> float:
    return math.exp((1 - weight) * math.log(low) + weight * math.log(high))


_COLUMNS = ("t_s", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
_NOTHING = Mix(0.0, 0.0, 0.0)


class TraceError(DisaggError):
    """A text that is no trace; says which line is wrong and why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded load; it repeats when it is over."""

    step_seconds: float
    mixes: tuple[Mix, ...]

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.step_seconds * len(self.mixes)

    @property
    def mean_requests_per_second(self) -> float:
        """Mean over its whole length."""
        return sum(mix.requests_per_second for mix in self.mixes) / len(self.mixes)

    def rate(self, t_seconds: float) -> Mix:
        """Return the mix `t_seconds` after the start."""
        return self.mixes[int(t_seconds / self.step_seconds) % len(self.mixes)]

    def scaled(self, mean_requests_per_second: float) -> Trace:
        """Return the same trace scaled to this mean rate; the lengths of requests stay."""
        factor = mean_requests_per_second / self.mean_requests_per_second
        mixes = (
            replace(mix, requests_per_second=mix.requests_per_second * factor) for mix in self.mixes
        )
        return replace(self, mixes=tuple(mixes))


def parse_trace(text: str) -> Trace:
    """Parse a trace.

    Raises:
        TraceError: The text is not a trace.
    """
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) < 2:
        raise TraceError("a trace needs two rows or more")
    parsed = [_numbers(line, row) for line, row in enumerate(rows, start=2)]
    starts = [numbers[0] for numbers in parsed]
    step_seconds = starts[1] - starts[0]
    for line, (start, following) in enumerate(pairwise(starts), start=3):
        if step_seconds <= 0 or abs(following - start - step_seconds) > 1e-6:
            raise TraceError(f"line {line}: the steps of t_s are not equally long")
    return Trace(step_seconds, tuple(_mix(*numbers[1:]) for numbers in parsed))


def read_trace(path: Path) -> Trace:
    """Read a trace from a file; raises `TraceError`, and `OSError` if there is no such file."""
    try:
        return parse_trace(path.read_text(encoding="utf-8"))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _numbers(line: int, row: Mapping[str, str | None]) -> tuple[float, float, float, float]:
    values = []
    for column in _COLUMNS:
        try:
            value = float(row.get(column) or "")
        except ValueError:
            raise TraceError(f"line {line}: {column} is {row.get(column)!r}, no number") from None
        if not 0 <= value < 1e15:
            raise TraceError(f"line {line}: {column} is {value}, not a number from 0 up")
        values.append(value)
    return values[0], values[1], values[2], values[3]


def _mix(requests: float, prompt_tokens: float, output_tokens: float) -> Mix:
    if requests == 0:
        return _NOTHING
    return Mix(requests, prompt_tokens / requests, output_tokens / requests)
