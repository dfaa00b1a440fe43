"""Polls all connections of a daemon's engines together, at a fixed interval.

A daemon woken by each message of each engine would wake hundreds of times a second. Instead the
kernel is asked once per interval which connections have data.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from weakref import WeakValueDictionary

ReadTurn = Callable[[], bool]
"""Reads one turn's worth of a connection; returns whether more is waiting."""

RestSeconds = Callable[[], float]
"""Returns the present interval between polls."""

# A sender's queue holds some 300 KiB of full packets with the kernel's defaults (208 KiB in
# `wmem_max`), and anything beyond is lost. So a connection with much queued is read before the
# interval ends. Checking wakes the daemon too, but costs only microseconds a connection.
CHECK_SECONDS = 0.25
MUCH_BYTES = 96 * 1024


class BatchedPoller:
    """The connections of one loop: each is read within `rest_seconds()` of receiving data.

    A connection with more than a turn's worth is read turn by turn, with the loop's other work in
    between. One with `MUCH_BYTES` queued is read within `CHECK_SECONDS`.
    """

    def __init__(self, loop: AbstractEventLoop, rest_seconds: RestSeconds) -> None:
        self._loop = loop
        self._rest_seconds = rest_seconds
        self._readers: dict[int, ReadTurn] = {}
        self._soon: set[ReadTurn] = set()
        self._selector: select.epoll | None = None
        self._next: TimerHandle | None = None
        self._beat_seconds = 0.0

    def add(self, link: socket.socket, read: ReadTurn) -> None:
        """Read a connection, now and at each poll, until it is removed.

        Raises:
            OSError: No descriptor is left; the connection is not read.
        """
        selector = self._selector or select.epoll()
        try:
            selector.register(link.fileno(), select.EPOLLIN)
        except OSError:
            if not self._readers:
                selector.close()
            raise
        self._readers[link.fileno()] = read
        if self._selector is None:
            self._selector = selector
            self._rest()
        self._take_turn(link.fileno(), read)

    def remove(self, link: socket.socket) -> None:
        """Stop reading a connection; to be called before it is closed."""
        if self._selector is None or self._readers.pop(link.fileno(), None) is None:
            return
        self._selector.unregister(link.fileno())
        if not self._readers:
            self._selector.close()
            self._selector = None
            if self._next is not None:
                self._next.cancel()

    def next_seconds(self) -> float:
        """Return the time of the next poll, by the loop's clock."""
        return self._next_multiple(self._rest_seconds())

    def _next_multiple(self, seconds: float) -> float:
        return (self._loop.time() // seconds + 1) * seconds

    def _rest(self) -> None:
        self._beat_seconds = self.next_seconds()
        check_seconds = min(self._beat_seconds, self._next_multiple(CHECK_SECONDS))
        self._next = self._loop.call_at(check_seconds, self._poll)

    def _poll(self) -> None:
        if self._selector is None:
            return
        is_beat = self._loop.time() >= self._beat_seconds
        self._rest()
        for number, _events in self._selector.poll(0):
            read = self._readers.get(number)
            if read is not None and (is_beat or _queued_bytes(number) >= MUCH_BYTES):
                self._take_turn(number, read)

    def _take_turn(self, number: int, read: ReadTurn) -> None:
        """Schedule one turn; only one at a time, however much is waiting."""
        if read not in self._soon:
            self._soon.add(read)
            self._loop.call_soon(self._turn, number, read)

    def _turn(self, number: int, read: ReadTurn) -> None:
        self._soon.discard(read)
        # The descriptor may belong to another connection by now.
        if self._readers.get(number) is read and read():
            self._take_turn(number, read)


def _queued_bytes(number: int) -> int:
    """Return the unread bytes of a connection, over all its packets."""
    (count,) = struct.unpack("i", fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
    return int(count)


_POLLERS: WeakValueDictionary[tuple[AbstractEventLoop, RestSeconds], BatchedPoller] = (
    WeakValueDictionary()
)


def shared_poller(loop: AbstractEventLoop, rest_seconds: RestSeconds) -> BatchedPoller:
    """Return the poller shared by all users of a loop and interval, kept while one refers to it."""
    poller = _POLLERS.get((loop, rest_seconds))
    if poller is None:
        poller = _POLLERS[loop, rest_seconds] = BatchedPoller(loop, rest_seconds)
    return poller
