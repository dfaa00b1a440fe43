"""Bounds how often one event is logged: an engine that flaps at will must not fill the log."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

BURST_LINES = 10
SECONDS_PER_LINE = 60.0
MAX_EVENTS = 1024


@dataclass(slots=True)
class _Event:
    """How many lines of one event may still be written, since when, and how many were not."""

    left: float
    since_seconds: float
    dropped: int = 0


class LogRateLimit(logging.Filter):
    """Lets each event through some times at once, and from then on once a minute.

    Lines are of one event if they have the same text before its values are filled in, and the same
    first value, which is whom it is about. The next line that is let through says how many were
    not. Lines for debugging are never held back.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._events: OrderedDict[tuple[str, str], _Event] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is to be written."""
        if record.levelno <= logging.DEBUG:
            return True
        event = self._event(record)
        if event.left < 1:
            event.dropped += 1
            return False
        event.left -= 1
        if event.dropped:
            left_out = f"(left out since the last such line: {event.dropped})"
            record.msg, record.args = f"{record.getMessage()} {left_out}", ()
            event.dropped = 0
        return True

    def _event(self, record: logging.LogRecord) -> _Event:
        subject = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        key, now_seconds = (str(record.msg), subject), self._clock()
        event = self._events.pop(key, None) or _Event(BURST_LINES, now_seconds)
        earned = (now_seconds - event.since_seconds) / SECONDS_PER_LINE
        event.left, event.since_seconds = min(event.left + earned, BURST_LINES), now_seconds
        self._events[key] = event
        while len(self._events) > MAX_EVENTS:
            self._events.popitem(last=False)
        return event
