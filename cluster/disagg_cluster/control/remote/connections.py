"""Identity of the gRPC server's connections: registered by the proxies, looked up by the server.

The server sees only local connections from the proxies. Each is bound to its own path, which gRPC
reports as its peer; the server finds the client by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from disagg_cluster.control.messages import Caller
from disagg_exporter.http.server.admission import ConnectionLimits, displaced_by


@dataclass(slots=True, eq=False)
class ClientConnection:
    """A connection: where it comes from, since when, and its identity once known.

    `trusted`: it has presented its certificate or token. `calls`: how many of its calls reached the
    server. `is_logged`: the reason for its end was logged. `end` closes it.
    """

    number: int
    address: str
    since_seconds: float
    end: Callable[[], None]
    caller: Caller
    trusted: bool = False
    calls: int = 0
    is_logged: bool = False


class ClientConnections:
    """All connections; thread-safe.

    Args:
        folder: Holds the path of each connection.
        trusted: Maximum number of authenticated connections.
        strangers: Maximum number of others; beyond it, the slowest of the address with the most is
            closed.
    """

    def __init__(self, folder: Path, trusted: int = 64, strangers: int = 32) -> None:
        self._folder = folder
        self._most_trusted = trusted
        self._strangers = ConnectionLimits(strangers, strangers // 2)
        self._lock = threading.Lock()
        self._numbers = 0
        self._here: dict[int, ClientConnection] = {}

    def enter(
        self, host: str, address: str, now_seconds: float, end: Callable[[], None]
    ) -> tuple[ClientConnection, ClientConnection | None]:
        """Register a connection by `address`; also returns one that must be closed for it."""
        with self._lock:
            strangers = [each for each in self._here.values() if not each.trusted]
            displaced = displaced_by(address, strangers, self._strangers)
            self._numbers += 1
            connection = ClientConnection(self._numbers, address, now_seconds, end, Caller(host))
            self._here[connection.number] = connection
            return connection, None if displaced is None else self._here.pop(displaced)

    def trust(self, connection: ClientConnection) -> bool:
        """Mark a connection as authenticated; returns False if there are too many."""
        with self._lock:
            if not connection.trusted:
                if sum(each.trusted for each in self._here.values()) >= self._most_trusted:
                    return False
                connection.trusted = True
            return True

    def leave(self, connection: ClientConnection) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._here.pop(connection.number, None)
        self.path(connection).unlink(missing_ok=True)

    def path(self, connection: ClientConnection) -> Path:
        """The path to which its end of the inner connection is bound."""
        return self._folder / str(connection.number)

    def by_peer(self, peer: str) -> ClientConnection | None:
        """The connection with this gRPC peer; None if it did not come through a proxy."""
        folder, _, name = unquote(peer.removeprefix("unix:")).rpartition("/")
        if folder != str(self._folder) or not name.isdecimal():
            return None
        with self._lock:
            return self._here.get(int(name))
