"""Bytes over a device's links, added up from rates that hold for a stretch of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.model import Direction, LinkKind, LinkTraffic

LONGEST_NS = 60_000_000_000
"""A rate that is said to have held for longer says nothing of so long ago."""


class LinkBytes:
    """What one device has sent and received since it is watched; reported rates alone count."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[LinkKind, Direction], float] = {}
        self._until_ns: int | None = None

    def add(
        self, rates: Iterable[tuple[tuple[LinkKind, Direction], float | None]], now_ns: int
    ) -> tuple[LinkTraffic, ...]:
        """Add bytes per second that held since the call before, and return all of it."""
        before_ns, self._until_ns = self._until_ns, now_ns
        passed_ns = 0 if before_ns is None else min(max(now_ns - before_ns, 0), LONGEST_NS)
        for link, rate in rates:
            if rate is not None:
                self._bytes[link] = self._bytes.get(link, 0.0) + rate * passed_ns / 1e9
        return tuple(LinkTraffic(*link, count) for link, count in self._bytes.items())
