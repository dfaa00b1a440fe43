"""Virtual time: what happens when, and what a simulation reports of it.

The only clock of the simulation, and it jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from disagg_cluster.simulator.engine.batch import Request
from disagg_exporter.model import Assignment, DeviceSweep
from disagg_exporter.steps.messages import ControlMessage


@dataclass(frozen=True, slots=True)
class SimulatedPage:
    """The metrics page of an engine, as a look at it would have found it."""

    engine: str
    t_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """What became of a user's request.

    Which engines served it, when its user saw the first token (None if never) and when it ended.
    `failed` if an engine died over it or none could take it.
    """

    request: Request
    prefill_engine: str
    decode_engine: str
    first_token_ns: int | None
    ended_ns: int
    failed: bool = False


Event = ControlMessage | Assignment | DeviceSweep | SimulatedPage | RequestEnded


_NS = 1_000_000_000

Action = Callable[[], Event | None]
"""Something that is done at its time; what it returns is an event for the outside."""


class EventQueue:
    """Things to do, in order of time; those at one time in the order they were noted."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.actions = 0
        self._noted = 0
        self._heap: list[tuple[int, int, Action]] = []

    def at(self, t_ns: int, action: Action) -> None:
        """Note something to do, now at the earliest."""
        self._noted += 1
        heappush(self._heap, (max(t_ns, self.now_ns), self._noted, action))

    def after(self, seconds: float, action: Action) -> None:
        """Note something to do so much later."""
        self.at(self.now_ns + round(seconds * _NS), action)

    def every(self, seconds: float | None, action: Action, over: Callable[[], bool]) -> None:
        """Do something each interval from now on until it is `over`; None: never."""
        if seconds is None:
            return
        interval_ns = round(seconds * _NS)

        def again() -> Event | None:
            if over():
                return None
            self.at(self.now_ns + interval_ns, again)
            return action()

        self.at(self.now_ns + interval_ns, again)

    def emit(self, event: Event) -> None:
        """Report something that happens now to the outside."""
        self.at(self.now_ns, lambda: event)

    def events(self, until_ns: int) -> Iterator[tuple[int, Event]]:
        """Do everything until then, and yield the events."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, action = heappop(heap)
            self.actions += 1
            event = action()
            if event is not None:
                yield self.now_ns, event
        self.now_ns = max(self.now_ns, until_ns)
