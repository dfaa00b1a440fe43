"""A token bucket: so many a second, and so many at once after a rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Any thread may ask; of two that take the last token at once, one gets it.

    Args:
        per_second: How many tokens come a second; above 0.
        burst: How many are kept at most, and are there first; by default those of a second.
        clock_ns: Nanoseconds that only grow.
    """

    def __init__(
        self,
        per_second: float,
        burst: float | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._per_second = per_second
        self._burst = self._tokens = per_second if burst is None else float(burst)
        self._clock_ns = clock_ns
        self._at_ns = clock_ns()
        self._lock = threading.Lock()

    def available(self) -> int:
        """Return how many may be taken now."""
        with self._lock:
            self._refill()
            return int(self._tokens)

    def spend(self, count: int = 1) -> None:
        """Take some, after `available` said that there are; what is beyond that is owed."""
        with self._lock:
            self._tokens -= count

    def take(self) -> bool:
        """Take one, if there is one."""
        with self._lock:
            self._refill()
            taken = self._tokens >= 1
            self._tokens -= taken
            return taken

    def _refill(self) -> None:
        now_ns = self._clock_ns()
        gained = max(now_ns - self._at_ns, 0) / 1e9 * self._per_second
        self._tokens = min(self._tokens + gained, self._burst)
        self._at_ns = now_ns
