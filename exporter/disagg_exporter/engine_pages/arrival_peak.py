"""The most requests that pages of one process have shown as arrived."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_LAG_NS = 10 * 10**9
"""Longest time by which an engine's gauges and counters lag each other."""
_LEAST_PAGES = 3
"""A single page is no evidence, however rarely pages are read."""


class _Seen(NamedTuple):
    t_ns: int
    finished: float
    arrived: float


class ArrivalPeak:
    """The peak of finished requests and those inside; what exceeds it has arrived since.

    Both are counted at different moments, so for a while their sum may be too high or too low by
    what finishes then: only a new peak is an arrival. But requests whose users give up are no
    longer inside, and some engines never count them as finished. The peak falls by those: by what
    the sum stays below it, less what finished from shortly before the peak on.

    Args:
        arrived: Those that are not new.
        may_vanish: Whether it is such an engine.
    """

    def __init__(self, arrived: float = 0.0, *, may_vanish: bool = False) -> None:
        self._may_vanish = may_vanish
        self._most = arrived
        self._peak_ns: int | None = None
        self._finished_before = 0.0
        self._recent: deque[_Seen] = deque()

    def ingest(self, t_ns: int, finished: float, arrived: float) -> float:
        """Return the peak before a page, and ingest the page."""
        recent = self._recent
        recent.append(_Seen(t_ns, finished, arrived))
        while len(recent) > _LEAST_PAGES and recent[1].t_ns <= t_ns - _LAG_NS:
            recent.popleft()
        first = recent[0]
        if self._peak_ns is None:
            self._peak_ns, self._finished_before = t_ns, finished
        elif (
            self._may_vanish
            and self._peak_ns < first.t_ns <= t_ns - _LAG_NS
            and len(recent) >= _LEAST_PAGES
        ):
            lagging = finished - self._finished_before
            self._most = min(self._most, max(each.arrived for each in recent) + lagging)
        most = self._most
        if arrived > most:
            self._most, self._peak_ns, self._finished_before = arrived, t_ns, first.finished
        return most
