"""A token bucket: a steady rate, with bursts after a pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """A thread-safe token bucket.

    Args:
        per_second: Tokens added per second; above 0.
        burst: Capacity and initial number of tokens; by default those of one second.
        clock_ns: A monotonic clock in nanoseconds.
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
        """Return the tokens that may be taken now."""
        with self._lock:
            self._refill()
            return int(self._tokens)

    def spend(self, count: int = 1) -> None:
        """Take tokens found by `available`; more than that is owed."""
        with self._lock:
            self._tokens -= count

    def take(self) -> bool:
        """Take a token if there is one; return whether it was taken."""
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
