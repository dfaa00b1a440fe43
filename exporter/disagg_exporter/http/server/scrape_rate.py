"""Detects frequent scraping; only then are the fast gauges refreshed four times a second."""

from __future__ import annotations

from collections import deque

_REQUESTS, _WITHIN_SECONDS = 3, 10.0


class ScrapeRate:
    """Records when the page was last requested.

    A Prometheus that scrapes every fifteen seconds gains nothing from gauges refreshed four times
    a second; one that scrapes every second does, and so does a person who watches.
    """

    def __init__(self) -> None:
        self._requested: deque[float] = deque(maxlen=_REQUESTS)

    def record(self, now_seconds: float) -> None:
        """Record a request; from any thread."""
        self._requested.append(now_seconds)

    def is_high(self, now_seconds: float) -> bool:
        """Return whether the page was requested three times in the last ten seconds."""
        requested = tuple(self._requested)
        return len(requested) == _REQUESTS and now_seconds - requested[0] <= _WITHIN_SECONDS
