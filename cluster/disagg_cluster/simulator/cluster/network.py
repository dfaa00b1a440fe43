"""Between engines: a router chooses who gets the next request, links carry the KV of prompts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Policy(StrEnum):
    """How a router chooses."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"


class RequestRouter:
    """Chooses among engines of one role, and knows how many requests each has in flight."""

    def __init__(self, policy: Policy, most_in_flight: int | None = None) -> None:
        """Take a policy, and how many requests an engine is given at once at most."""
        self._policy = policy
        self._most_in_flight = most_in_flight
        self._in_flight: Counter[str] = Counter()
        self._turn = 0

    def choose(self, engines: Sequence[str]) -> str | None:
        """Give the next request to one of these engines; None if none may have it now."""
        free = [name for name in engines if self._may_have_more(name)]
        if not free:
            return None
        if self._policy is Policy.ROUND_ROBIN:
            chosen = free[self._turn % len(free)]
            self._turn += 1
        else:
            chosen = min(free, key=lambda name: self._in_flight[name])
        self._in_flight[chosen] += 1
        return chosen

    def end(self, engine: str) -> None:
        """A request of this engine has ended."""
        self._in_flight[engine] -= 1

    def in_flight(self, engine: str) -> int:
        """How many requests an engine has."""
        return self._in_flight[engine]

    def _may_have_more(self, engine: str) -> bool:
        return self._most_in_flight is None or self._in_flight[engine] < self._most_in_flight


_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What one engine can send or take: by default 400 Gb/s of network at eight tenths."""

    bytes_per_second: float = 40e9
    latency_seconds: float = 0.002


@dataclass(frozen=True, slots=True)
class Transfer:
    """One prompt's KV on its way; `failed` is known at its end only."""

    start_ns: int
    end_ns: int
    bytes: int
    failed: bool = False

    @property
    def seconds(self) -> float:
        """How long it travels, waiting for the link left out."""
        return (self.end_ns - self.start_ns) / _NS


class KvNetwork:
    """All links. An engine sends one transfer after the other and takes one after the other.

    `slowdown` and `failing_ratio` are what faults make of it.
    """

    def __init__(self, link: LinkSpec, rng: random.Random) -> None:
        self.slowdown = 1.0
        self.failing_ratio = 0.0
        self._link = link
        self._rng = rng
        self._free_ns: dict[str, int] = {}

    def book(self, source: str, target: str, size_bytes: int, now_ns: int) -> Transfer:
        """Send `size_bytes` as soon as both ends are free."""
        sender, taker = f"from {source}", f"to {target}"
        start_ns = max(now_ns, self._free_ns.get(sender, 0), self._free_ns.get(taker, 0))
        seconds = self._link.latency_seconds + size_bytes / self._link.bytes_per_second
        end_ns = start_ns + round(seconds * self.slowdown * _NS)
        self._free_ns[sender] = self._free_ns[taker] = end_ns
        failed = self.failing_ratio > 0 and self._rng.random() < self.failing_ratio
        return Transfer(start_ns, end_ns, size_bytes, failed)
