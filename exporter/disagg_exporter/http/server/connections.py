"""The connections that are open now, and the end of those that pay for a newcomer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disagg_exporter.collectors import DaemonThread, NoThreadError
from disagg_exporter.http.server.admission import (
    ConnectionLimits,
    OpenConnection,
    Refusal,
    RefusalCounts,
    displaced_by,
)

if TYPE_CHECKING:
    from disagg_exporter.http.deadline_socket import DeadlineSocket


@dataclass(slots=True, eq=False)
class Connection(OpenConnection):
    """One open connection; the thread that serves it says when it begins something new."""

    is_ended: bool = False

    def begin(self) -> None:
        """Note that from now on it waits for a request, or is answered.

        Raises:
            ConnectionError: It was ended meanwhile.
        """
        self.since_seconds = time.monotonic()
        if self.is_ended:
            raise ConnectionError("its place was needed, or the server ends")

    def carry(self, client: DeadlineSocket) -> None:
        """Go on with another socket of the same connection; raises as `begin` does."""
        self.client = client
        self.begin()

    def end(self) -> None:
        """Wake the thread that serves it, to its end."""
        self.is_ended = True
        with contextlib.suppress(OSError):
            # Of the plain socket: that of TLS would take the ground from under its thread.
            socket.socket.shutdown(self.client, socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class Connections:
    """All open connections, kept within their limits.

    Args:
        limits: How many there may be.
        refusals: Where those are counted that paid for a newcomer.
        refuse: Answers a client, at once, that there is no room for it.
    """

    limits: ConnectionLimits
    refusals: RefusalCounts
    refuse: Callable[[DeadlineSocket], None]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _open: dict[int, Connection] = field(default_factory=dict, init=False)
    _threads: dict[int, DaemonThread] = field(default_factory=dict, init=False)
    _last_number: int = field(default=0, init=False)

    def open(self, client: DeadlineSocket, address: str) -> Connection:
        """Take a connection in; one that has been there for longer may have to go."""
        now_seconds = time.monotonic()
        with self._lock:
            number = displaced_by(address, self._open.values(), self.limits)
            displaced = None if number is None else self._open.pop(number)
            self._last_number += 1
            connection = Connection(self._last_number, address, client, now_seconds)
            self._open[connection.number] = connection
            if displaced is not None:
                displaced.end()
        if displaced is not None:
            self.refusals.add(Refusal.DISPLACED, displaced.address)
        return connection

    def start(self, connection: Connection, serve: Callable[[], None]) -> None:
        """Serve it on a thread of its own, or refuse it where there is none to be had.

        A thread of a connection that had to go may take a moment to end, so there may be more of
        them than connections, but no more than twice as many.
        """
        thread = DaemonThread(lambda: self._run(connection, serve), f"client-{connection.number}")
        with self._lock:
            is_full = len(self._threads) >= 2 * self.limits.total
            if not is_full:
                self._threads[connection.number] = thread
        if not is_full:
            try:
                thread.start()
            except NoThreadError:
                is_full = True
        if is_full:
            self.refusals.add(Refusal.NO_THREAD, connection.address)
            self.refuse(connection.client)
            self._forget(connection)

    def end_longest(self) -> None:
        """End the one that has been at what it does for longest, if there is any."""
        with self._lock:
            if not self._open:
                return
            longest = min(self._open.values(), key=lambda one: one.since_seconds)
            del self._open[longest.number]
            longest.end()
        self.refusals.add(Refusal.DISPLACED, longest.address)

    def end_all(self, wait_seconds: float) -> None:
        """End every connection and wait for the threads."""
        with self._lock:
            threads = tuple(self._threads.values())
            for connection in self._open.values():
                connection.end()
        for thread in threads:
            thread.join(wait_seconds)

    def _run(self, connection: Connection, serve: Callable[[], None]) -> None:
        try:
            serve()
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        # Under the lock, as what ends it must not find the descriptor in other hands.
        with self._lock:
            connection.client.close()
            self._open.pop(connection.number, None)
            self._threads.pop(connection.number, None)
