"""Between engines: a router chooses the engine of each request, links carry the KV of prompts."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from disagg_exporter.model import SECOND_NS


class Policy(StrEnum):
    """How a router chooses engines."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"


@dataclass(frozen=True, slots=True)
class StickyLengths:
    """Prompts of at least so many tokens all go to one engine."""

    engine: str
    least_tokens: int

    def takes(self, prompt_tokens: int) -> bool:
        """Return whether a prompt goes there."""
        return prompt_tokens >= self.least_tokens


class RequestRouter:
    """Chooses among engines of one role, and counts each engine's requests in flight.

    `most_in_flight` limits the requests per engine. Faults change `weights` and `sticky`. A weight,
    1 by default, is an engine's share of the turns, or the divisor of its load; with `sticky`, long
    prompts all go to one engine.
    """

    def __init__(self, policy: Policy, most_in_flight: int | None = None) -> None:
        self.most_in_flight = most_in_flight
        self.weights: Mapping[str, float] = {}
        self.sticky: StickyLengths | None = None
        self._policy = policy
        self._in_flight: Counter[str] = Counter()
        self._turn = 0
        self._credits: defaultdict[str, float] = defaultdict(float)

    def choose(self, engines: Sequence[str], prompt_tokens: int = 0) -> str | None:
        """Choose an engine for the next request; None if none may have it now."""
        free = [name for name in engines if self._has_room(name)]
        if not free:
            return None
        if self.sticky and self.sticky.takes(prompt_tokens) and self.sticky.engine in free:
            chosen = self.sticky.engine
        elif self._policy is Policy.LEAST_LOADED:
            chosen = min(free, key=self._weighted_load)
        elif self.weights:
            chosen = self._next_by_weights(free)
        else:
            chosen = free[self._turn % len(free)]
            self._turn += 1
        self._in_flight[chosen] += 1
        return chosen

    def end(self, engine: str) -> None:
        """Record that a request of this engine has ended."""
        self._in_flight[engine] -= 1

    def in_flight(self, engine: str) -> int:
        """Return how many requests an engine has."""
        return self._in_flight[engine]

    def _weighted_load(self, engine: str) -> float:
        """Return its requests, including the next one, divided by its weight."""
        return (self._in_flight[engine] + 1) / self.weights.get(engine, 1.0)

    def _next_by_weights(self, engines: Sequence[str]) -> str:
        """Return the next engine by smooth weighted round robin, as in nginx.

        Each engine gains its weight in credit, and the one with most pays the sum.
        """
        weights = {name: self.weights.get(name, 1.0) for name in engines}
        for name, weight in weights.items():
            self._credits[name] += weight
        chosen = max(engines, key=lambda name: self._credits[name])
        self._credits[chosen] -= sum(weights.values())
        return chosen

    def _has_room(self, engine: str) -> bool:
        return self.most_in_flight is None or self._in_flight[engine] < self.most_in_flight


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Bandwidth of one engine in each direction: by default 400 Gb/s of network at eight tenths."""

    bytes_per_second: float = 40e9
    latency_seconds: float = 0.002


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer of one prompt's KV; `failed` is known only at its end."""

    start_ns: int
    end_ns: int
    bytes: int
    failed: bool = False

    @property
    def seconds(self) -> float:
        """Its duration, without the wait for the link."""
        return (self.end_ns - self.start_ns) / SECOND_NS


class KvNetwork:
    """All links. An engine sends one transfer at a time and receives one at a time."""

    def __init__(self, link: LinkSpec, rng: random.Random) -> None:
        self._link = link
        self._rng = rng
        self._free_ns: dict[str, int] = {}
        self._slowdowns: dict[str | None, float] = {}
        self._failing_ratios: dict[str | None, float] = {}

    def slow_down(self, engine: str | None, factor: float) -> None:
        """Make an engine's transfers, None: all, take `factor` times as long; 1 ends it."""
        self._slowdowns[engine] = factor

    def let_fail(self, engine: str | None, ratio: float) -> None:
        """Make this share of the transfers from and to an engine, None: of all, fail; 0 ends it."""
        self._failing_ratios[engine] = ratio

    def start_transfer(self, source: str, target: str, size_bytes: int, now_ns: int) -> Transfer:
        """Send `size_bytes` as soon as both ends are free."""
        sender, taker = f"from {source}", f"to {target}"
        start_ns = max(now_ns, self._free_ns.get(sender, 0), self._free_ns.get(taker, 0))
        seconds = self._link.latency_seconds + size_bytes / self._link.bytes_per_second
        slowdown = max(self._slowdowns.get(each, 1.0) for each in (None, source, target))
        end_ns = start_ns + round(seconds * slowdown * SECOND_NS)
        self._free_ns[sender] = self._free_ns[taker] = end_ns
        ratio = max(self._failing_ratios.get(each, 0.0) for each in (None, source, target))
        failed = ratio > 0 and self._rng.random() < ratio
        return Transfer(start_ns, end_ns, size_bytes, failed)
