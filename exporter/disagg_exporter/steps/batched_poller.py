"""One beat on which all connections of a daemon's engines are heard.

A daemon that is woken by each message of each engine wakes hundreds of times a second. Here the
kernel is asked, a few times a second and once for all, who has sent something.
"""

from __future__ import annotations

import select
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from weakref import WeakValueDictionary

Hear = Callable[[], bool]
"""Hears one turn's worth of a connection; says whether more is waiting."""


class Beat:
    """The connections of one loop: each is heard within `rest_seconds` of what it sends.

    One that has more than a turn's worth is heard on, turn by turn, with all else in between.
    """

    def __init__(self, loop: AbstractEventLoop, rest_seconds: float) -> None:
        self._loop = loop
        self._rest_seconds = rest_seconds
        self._hears: dict[int, Hear] = {}
        self._soon: set[Hear] = set()
        self._selector: select.epoll | None = None
        self._next: TimerHandle | None = None

    def add(self, link: socket.socket, hear: Hear) -> None:
        """Hear a connection, now and at each beat, until it is removed.

        Raises:
            OSError: No descriptor is left; the connection is not heard.
        """
        selector = self._selector or select.epoll()
        try:
            selector.register(link.fileno(), select.EPOLLIN)
        except OSError:
            if not self._hears:
                selector.close()
            raise
        self._hears[link.fileno()] = hear
        if self._selector is None:
            self._selector = selector
            self._rest()
        self._take_turn(link.fileno(), hear)

    def remove(self, link: socket.socket) -> None:
        """Hear a connection no more; to be called before it is closed."""
        if self._selector is None or self._hears.pop(link.fileno(), None) is None:
            return
        self._selector.unregister(link.fileno())
        if not self._hears:
            self._selector.close()
            self._selector = None
            if self._next is not None:
                self._next.cancel()

    def next_seconds(self) -> float:
        """When the next beat is, by the loop's clock."""
        return (self._loop.time() // self._rest_seconds + 1) * self._rest_seconds

    def _rest(self) -> None:
        self._next = self._loop.call_at(self.next_seconds(), self._look)

    def _look(self) -> None:
        if self._selector is None:
            return
        self._rest()
        for number, _events in self._selector.poll(0):
            hear = self._hears.get(number)
            if hear is not None:
                self._take_turn(number, hear)

    def _take_turn(self, number: int, hear: Hear) -> None:
        """Have one turn taken soon: one at a time, however much is waiting."""
        if hear not in self._soon:
            self._soon.add(hear)
            self._loop.call_soon(self._turn, number, hear)

    def _turn(self, number: int, hear: Hear) -> None:
        self._soon.discard(hear)
        # The number may be another connection's by now.
        if self._hears.get(number) is hear and hear():
            self._take_turn(number, hear)


_BEATS: WeakValueDictionary[tuple[AbstractEventLoop, float], Beat] = WeakValueDictionary()


def beat_of(loop: AbstractEventLoop, rest_seconds: float) -> Beat:
    """Return the beat that all who rest as long share on a loop, kept while one keeps it."""
    beat = _BEATS.get((loop, rest_seconds))
    if beat is None:
        beat = _BEATS[loop, rest_seconds] = Beat(loop, rest_seconds)
    return beat
