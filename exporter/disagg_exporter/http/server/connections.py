"""The open connections, and the end of those displaced by new ones."""

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
    """One open connection; its thread calls `begin` at each change of state."""

    is_ended: bool = False

    def begin(self) -> None:
        """Record that it waits for a request, or is answered, from now on.

        Raises:
            ConnectionError: It has been ended.
        """
        self.since_seconds = time.monotonic()
        if self.is_ended:
            raise ConnectionError("its place was needed, or the server ends")

    def carry(self, client: DeadlineSocket) -> None:
        """Continue with another socket of the same connection; raises as `begin` does."""
        self.client = client
        self.begin()

    def end(self) -> None:
        """End it, and wake the thread that serves it."""
        self.is_ended = True
        with contextlib.suppress(OSError):
            # On the plain socket: shutting down TLS would break the thread that uses it.
            socket.socket.shutdown(self.client, socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class Connections:
    """All open connections, kept within their limits.

    Args:
        limits: The maximum numbers.
        refusals: Counts the displaced connections.
        refuse: Rejects a client at once, for lack of room.
    """

    limits: ConnectionLimits
    refusals: RefusalCounts
    refuse: Callable[[DeadlineSocket], None]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _open: dict[int, Connection] = field(default_factory=dict, init=False)
    _threads: dict[int, DaemonThread] = field(default_factory=dict, init=False)
    _last_number: int = field(default=0, init=False)

    def open(self, client: DeadlineSocket, address: str) -> Connection:
        """Add a connection; an older one may be displaced."""
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
        """Serve it on its own thread, or refuse it if there is none.

        The thread of a displaced connection may take a moment to end, so there may be more threads
        than connections, but at most twice as many.
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
        """End the connection that is longest in its present state, if there is any."""
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
        # Under the lock, so that `end` never uses a descriptor that has been reassigned.
        with self._lock:
            connection.client.close()
            self._open.pop(connection.number, None)
            self._threads.pop(connection.number, None)
