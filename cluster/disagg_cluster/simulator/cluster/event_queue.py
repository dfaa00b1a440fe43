"""Virtual time: what happens when. The only clock of the simulation, and it jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from disagg_cluster.simulator.cluster.events import Event

_NS = 1_000_000_000

Act = Callable[[], Event | None]
"""Something that is done at its time; what it returns is told to the outside."""


class Agenda:
    """Things to do, in order of time; those at one time in the order they were noted."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.acts = 0
        self._noted = 0
        self._heap: list[tuple[int, int, Act]] = []

    def at(self, t_ns: int, act: Act) -> None:
        """Note something to do, now at the earliest."""
        self._noted += 1
        heappush(self._heap, (max(t_ns, self.now_ns), self._noted, act))

    def after(self, seconds: float, act: Act) -> None:
        """Note something to do so much later."""
        self.at(self.now_ns + round(seconds * _NS), act)

    def every(self, seconds: float | None, act: Act, over: Callable[[], bool]) -> None:
        """Do something each interval from now on until it is `over`; None: never."""
        if seconds is None:
            return
        interval_ns = round(seconds * _NS)

        def again() -> Event | None:
            if over():
                return None
            self.at(self.now_ns + interval_ns, again)
            return act()

        self.at(self.now_ns + interval_ns, again)

    def tell(self, event: Event) -> None:
        """Let the outside know of something that happens now."""
        self.at(self.now_ns, lambda: event)

    def events(self, until_ns: int) -> Iterator[tuple[int, Event]]:
        """Do everything until then, and yield what there is to tell."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, act = heappop(heap)
            self.acts += 1
            event = act()
            if event is not None:
                yield self.now_ns, event
        self.now_ns = max(self.now_ns, until_ns)
