"""What the server turned away, by reason: shown on the page that it serves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus

from disagg_exporter.http.server.request_head import HeadError

_log = logging.getLogger(__name__)
_WARN_EVERY_SECONDS = 60.0
_TOO_LARGE = (HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)


class Refusal(StrEnum):
    """Why we ended a connection before it had its answer."""

    DISPLACED = "displaced"
    NO_THREAD = "no_thread"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    TLS = "tls"


def refusal_of(error: HeadError) -> Refusal:
    """Why the head of a request was refused."""
    return Refusal.TOO_LARGE if error.status in _TOO_LARGE else Refusal.MALFORMED


class RefusalCounts:
    """Counts of each reason since the start; from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Refusal, 0)
        self._warned_seconds = float("-inf")

    def add(self, reason: Refusal) -> None:
        """Count one."""
        with self._lock:
            self._counts[reason] += 1

    def displace(self, address: str) -> None:
        """Count one that had to go for another, and say so once a minute."""
        self.add(Refusal.DISPLACED)
        now_seconds = self._clock()
        if now_seconds - self._warned_seconds < _WARN_EVERY_SECONDS:
            return
        self._warned_seconds = now_seconds
        _log.warning(
            "metrics page: too many connections; the slowest of those with the most (now %s) end",
            address,
        )

    def read(self) -> dict[str, int]:
        """Every reason and its count."""
        with self._lock:
            return {reason.value: count for reason, count in self._counts.items()}
