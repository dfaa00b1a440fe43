"""Bytes over a device's links, integrated from mean rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.model import Direction, LinkKind, LinkTraffic

LONGEST_NS = 60_000_000_000
"""A rate covers at most this much time before it was reported."""


class LinkBytes:
    """Bytes that one device sent and received since watching began; only reported rates count."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[LinkKind, Direction], float] = {}
        self._until_ns: int | None = None

    def add(
        self, rates: Iterable[tuple[tuple[LinkKind, Direction], float | None]], now_ns: int
    ) -> tuple[LinkTraffic, ...]:
        """Add bytes per second that held since the previous call; return the totals."""
        before_ns, self._until_ns = self._until_ns, now_ns
        passed_ns = 0 if before_ns is None else min(max(now_ns - before_ns, 0), LONGEST_NS)
        for link, rate in rates:
            if rate is not None:
                self._bytes[link] = self._bytes.get(link, 0.0) + rate * passed_ns / 1e9
        return tuple(LinkTraffic(*link, count) for link, count in self._bytes.items())
