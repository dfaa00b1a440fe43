"""Which engine gets the next request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum


class Policy(StrEnum):
    """How a router chooses."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"


class Router:
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
