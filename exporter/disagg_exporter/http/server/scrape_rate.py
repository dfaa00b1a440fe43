"""Whether somebody looks at the page so often that its fast gauges are worth being quick."""

from __future__ import annotations

from collections import deque

OFTEN, WITHIN_SECONDS = 3, 10.0


class Onlookers:
    """Remembers when the page was asked for last.

    A Prometheus that scrapes every fifteen seconds sees nothing of gauges that are made anew four
    times a second; one that scrapes every second does, and so does a person who watches.
    """

    def __init__(self) -> None:
        self._asked: deque[float] = deque(maxlen=OFTEN)

    def note(self, now_seconds: float) -> None:
        """Note that somebody asks; from any thread."""
        self._asked.append(now_seconds)

    def look_often(self, now_seconds: float) -> bool:
        """Say whether the page was asked for three times in the last ten seconds."""
        asked = tuple(self._asked)
        return len(asked) == OFTEN and now_seconds - asked[0] <= WITHIN_SECONDS
