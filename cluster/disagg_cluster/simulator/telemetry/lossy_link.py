"""The socket between the plugin in an engine and the daemon: it keeps the order, and may fail."""

from __future__ import annotations

import random
from collections import deque

from disagg_cluster.simulator.cluster.event_queue import Agenda
from disagg_exporter.steps.messages import Message

_NS = 1_000_000_000


class Channel:
    """Carries the messages of one engine process.

    `lost_ratio` of the step records do not get through, and all messages arrive `late_seconds`
    late, if faults say so.
    """

    def __init__(self, agenda: Agenda, rng: random.Random) -> None:
        self.lost_ratio = 0.0
        self.late_seconds = 0.0
        self._agenda = agenda
        self._rng = rng
        self._under_way: deque[Message] = deque()
        self._last_ns = 0

    def loses(self) -> bool:
        """Whether the next record does not get through."""
        return self.lost_ratio > 0 and self._rng.random() < self.lost_ratio

    def send(self, message: Message) -> Message | None:
        """Send a message now; return it if it is heard at once."""
        arrives_ns = self._agenda.now_ns + round(self.late_seconds * _NS)
        if arrives_ns >= self._last_ns and not self._under_way and not self.late_seconds:
            return message
        self._last_ns = max(self._last_ns, arrives_ns)
        self._under_way.append(message)
        self._agenda.at(self._last_ns, self._deliver)
        return None

    def close(self) -> None:
        """Let all be heard that is under way: the process is dead."""
        while self._under_way:
            self._agenda.tell(self._under_way.popleft())

    def _deliver(self) -> Message | None:
        return self._under_way.popleft() if self._under_way else None
