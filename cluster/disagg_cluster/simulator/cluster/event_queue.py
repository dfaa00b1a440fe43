"""Virtual time: the queue of events of a simulation, and the events it reports.

The only clock of the simulation, and it jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from disagg_cluster.simulator.engine.batch import Request
from disagg_exporter.model import SECOND_NS, Assignment, DeviceSweep
from disagg_exporter.steps.messages import ControlMessage


@dataclass(frozen=True, slots=True)
class SimulatedPage:
    """The metrics page of an engine, as a scrape would have returned it."""

    engine: str
    t_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The end of a user's request.

    Which engines served it, when its user received the first token (None if never) and when it
    ended. `failed` if an engine died during it or none could take it.
    """

    request: Request
    prefill_engine: str
    decode_engine: str
    first_token_ns: int | None
    ended_ns: int
    failed: bool = False


Event = ControlMessage | Assignment | DeviceSweep | SimulatedPage | RequestEnded


Action = Callable[[], Event | None]
"""An action for a given time; its result is reported as an event."""


class EventQueue:
    """Actions in order of time; those of the same time in the order they were added."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.actions = 0
        self._added = 0
        self._heap: list[tuple[int, int, Action]] = []

    def at(self, t_ns: int, action: Action) -> None:
        """Schedule an action, now at the earliest."""
        self._added += 1
        now_ns = self.now_ns
        heappush(self._heap, (t_ns if t_ns > now_ns else now_ns, self._added, action))

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an action after a delay."""
        self.at(self.now_ns + round(seconds * SECOND_NS), action)

    def every(self, seconds: float | None, action: Action, over: Callable[[], bool]) -> None:
        """Repeat an action at each interval from now on until it is `over`; None: never."""
        if seconds is None:
            return
        interval_ns = round(seconds * SECOND_NS)

        def again() -> Event | None:
            if over():
                return None
            self.at(self.now_ns + interval_ns, again)
            return action()

        self.at(self.now_ns + interval_ns, again)

    def emit(self, event: Event) -> None:
        """Report an event at the current time."""
        self.at(self.now_ns, lambda: event)

    def events(self, until_ns: int) -> Iterator[tuple[int, Event]]:
        """Run all actions until then, and yield the events."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, action = heappop(heap)
            self.actions += 1
            event = action()
            if event is not None:
                yield self.now_ns, event
        self.now_ns = max(self.now_ns, until_ns)
