"""So many a second, and no more than a second's worth at once."""

from __future__ import annotations


class Allowance:
    """What may be taken of something that others send.

    Args:
        per_second: How many a second; also how many at once after a rest.
        now_ns: The time now.
    """

    def __init__(self, per_second: float, now_ns: int) -> None:
        self._per_second = per_second
        self._room = per_second
        self._at_ns = now_ns

    def room(self, now_ns: int) -> int:
        """Return how many may be taken now."""
        grown = (now_ns - self._at_ns) / 1e9 * self._per_second
        self._room = min(self._room + max(grown, 0.0), self._per_second)
        self._at_ns = now_ns
        return int(self._room)

    def spend(self, count: int = 1) -> None:
        """Take some, after `room` said that there are; what is beyond that is owed."""
        self._room -= count
