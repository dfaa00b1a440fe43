"""Who is connected to the gRPC server: from the doors, which know it, to the server, which asks.

The server sees only connections on a socket of this host. Each is bound to a path of its own, which
is what gRPC tells as its peer: by that the server finds who it is.
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
class Visitor:
    """A connection: from where, since when, and who that is, once it is known by name.

    `trusted`: it has shown what it must, a certificate or a token. `calls`: so many of its calls
    came to where they are answered. `is_told`: why it is turned away was said. `end` ends it.
    """

    number: int
    address: str
    since_seconds: float
    end: Callable[[], None]
    caller: Caller
    trusted: bool = False
    calls: int = 0
    is_told: bool = False


class Visitors:
    """All connections; from any thread.

    Args:
        folder: Where each gets a path.
        trusted: How many may be connected that have shown what they must.
        strangers: How many that have not yet; the slowest of those with the most goes for another.
    """

    def __init__(self, folder: Path, trusted: int = 64, strangers: int = 32) -> None:
        self._folder = folder
        self._most_trusted = trusted
        self._strangers = ConnectionLimits(strangers, strangers // 2)
        self._lock = threading.Lock()
        self._numbers = 0
        self._here: dict[int, Visitor] = {}

    def enter(
        self, host: str, address: str, now_seconds: float, end: Callable[[], None]
    ) -> tuple[Visitor, Visitor | None]:
        """Take one in, and who has to go for it; places are counted by `address`."""
        with self._lock:
            strangers = [each for each in self._here.values() if not each.trusted]
            displaced = displaced_by(address, strangers, self._strangers)
            self._numbers += 1
            visitor = Visitor(self._numbers, address, now_seconds, end, Caller(host))
            self._here[visitor.number] = visitor
            return visitor, None if displaced is None else self._here.pop(displaced)

    def trust(self, visitor: Visitor) -> bool:
        """Take it that a visitor has shown what it must; False if there are too many already."""
        with self._lock:
            if not visitor.trusted:
                if sum(each.trusted for each in self._here.values()) >= self._most_trusted:
                    return False
                visitor.trusted = True
            return True

    def leave(self, visitor: Visitor) -> None:
        """It has gone."""
        with self._lock:
            self._here.pop(visitor.number, None)
        self.path(visitor).unlink(missing_ok=True)

    def path(self, visitor: Visitor) -> Path:
        """To which its end of the inner connection is bound."""
        return self._folder / str(visitor.number)

    def by_peer(self, peer: str) -> Visitor | None:
        """Who is connected from there, by gRPC's word; None if nobody came through a door."""
        folder, _, name = unquote(peer.removeprefix("unix:")).rpartition("/")
        if folder != str(self._folder) or not name.isdecimal():
            return None
        with self._lock:
            return self._here.get(int(name))
