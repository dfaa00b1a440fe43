"""The way of a prompt's KV from the engine that computed it to the one that goes on with it."""

from __future__ import annotations

import random
from dataclasses import dataclass

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Link:
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


class KvTransfer:
    """All links. An engine sends one transfer after the other and takes one after the other.

    `slowdown` and `failing_ratio` are what faults make of it.
    """

    def __init__(self, link: Link, rng: random.Random) -> None:
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
