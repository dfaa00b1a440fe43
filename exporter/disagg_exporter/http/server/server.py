"""The HTTP server of the metrics page, on threads that no driver or engine can block."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disagg_exporter.collectors.health import CollectorHealth
from disagg_exporter.http.deadline_socket import DeadlineSocket
from disagg_exporter.http.listen import NODE_SETTING, ListenAddress, open_listener
from disagg_exporter.http.server.admission import ConnectionLimits, Refusal, RefusalCounts
from disagg_exporter.http.server.authentication import OPEN, Access
from disagg_exporter.http.server.connection import ConnectionHandler
from disagg_exporter.http.server.connections import Connection, Connections
from disagg_exporter.http.server.reception import Arrival, Reception
from disagg_exporter.http.server.request import RequestHead, RequestReader
from disagg_exporter.http.server.routes import Site
from disagg_exporter.model import CollectorStatus

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

# Connections that may wait for their first request: each uses a descriptor and at most the head of
# a request, but no thread.
_WAITING = 256
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 21\r\nConnection: close\r\n\r\ntoo many connections\n"
)
_PLAIN_TO_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 32\r\nConnection: close\r\n\r\nthis port speaks TLS: use https\n"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients: concurrent connections, and seconds for a request or idle time.

    One address may hold at most half of the connections.
    """

    connections: int = 64
    client_seconds: float = 10.0


class MetricsServer:
    """Serves /metrics, /healthz, /readyz and a landing page until closed.

    Args:
        listen: The address, as from `parse_listen`.
        site: The pages.
        limits: Limits for clients.
        access: Returns the present conditions of access.
        setting: Where the address is set, as of `open_listener`.
    """

    def __init__(
        self,
        listen: ListenAddress,
        site: Site,
        limits: Limits = Limits(),
        access: Callable[[], Access] = lambda: OPEN,
        setting: str = NODE_SETTING,
    ) -> None:
        self._listen = listen
        self._setting = setting
        self._limits = limits
        self._access = access
        self._site = site
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._closing = threading.Event()
        self._refusals = RefusalCounts()
        self._health = CollectorHealth("http", _log, subject="metrics page")
        share = ConnectionLimits(limits.connections, limits.connections - limits.connections // 2)
        self._connections = Connections(share, self._refusals, _refuse)

    def start(self) -> ListenAddress:
        """Listen and serve; return the address with the actual port.

        Raises:
            ListenError: The address cannot be listened on.
        """
        self._listener = open_listener(self._listen, self._setting)
        reception = Reception(
            self._listener,
            ConnectionLimits(_WAITING, _WAITING // 2),
            self._limits.client_seconds,
            lambda: self._access().tls is not None,
            self._hand_on,
            self._connections.end_longest,
            self._refusals,
            self._health,
        )
        self._accepting = threading.Thread(
            target=reception.run, args=(self._closing,), name="metrics", daemon=True
        )
        self._accepting.start()
        return ListenAddress(self._listen.host, self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening, end every connection and wait for the threads."""
        self._closing.set()
        if self._listener is None or self._accepting is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self._accepting.join()
        self._listener.close()
        self._connections.end_all(self._limits.client_seconds)

    def refusals(self) -> dict[str, int]:
        """Return the refused connections and requests since the start, by reason."""
        return self._refusals.read()

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of accepting connections, once that has failed."""
        return (self._health.status(),) if self._health.has_failed else ()

    def _hand_on(self, arrival: Arrival, head: RequestHead | None) -> None:
        connection = self._connections.open(arrival.client, arrival.address)
        self._connections.start(connection, lambda: self._serve(connection, arrival.reader, head))

    def _serve(
        self, connection: Connection, reader: RequestReader, head: RequestHead | None
    ) -> None:
        try:
            access = self._access()
            tls = access.tls if head is None else None
            if tls is not None:
                self._encrypt(connection, tls, access.client_names)
                reader = RequestReader(connection.client)
            ConnectionHandler(
                connection,
                reader,
                tls,
                self._site,
                self._access,
                self._refusals,
                self._limits.client_seconds,
            ).serve(head)
        except OSError as error:
            _log.debug("metrics page: %s went away: %s", connection.address, error)

    def _encrypt(
        self, connection: Connection, context: ssl.SSLContext, names: frozenset[str]
    ) -> None:
        """Begin TLS; raises OSError if the client does not, or is not one of `names`."""
        from disagg_exporter.http.tls_socket import greet, speaks_tls, wrap

        client = connection.client
        assert isinstance(client, DeadlineSocket)
        client.limit(self._limits.client_seconds)
        try:
            if not speaks_tls(client):
                _refuse(client, _PLAIN_TO_TLS)
                raise ConnectionError("it does not speak TLS")
            wrapped = wrap(context, client)
            connection.carry(wrapped)
            wrapped.limit(self._limits.client_seconds)
            greet(wrapped, names)
        except OSError as error:
            if not connection.is_ended:
                why = getattr(error, "verify_message", "") or getattr(error, "reason", "")
                message = f"TLS: {why or error.strerror or error}"
                self._refusals.add(Refusal.TLS, connection.address, message)
            raise


def _refuse(client: DeadlineSocket, words: bytes = _FULL) -> None:
    with contextlib.suppress(OSError):
        client.limit(0.1)
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
