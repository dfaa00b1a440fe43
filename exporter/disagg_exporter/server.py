"""The HTTP server of the metrics page: threads of its own, which no driver or engine can stop."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from disagg_exporter.access import OPEN, Access
from disagg_exporter.http_connection import ConnectionHandler
from disagg_exporter.landing import Landing, Lookback
from disagg_exporter.limited_socket import Limited, LimitedSocket
from disagg_exporter.listen import ListenAddress, open_listener
from disagg_exporter.model import Snapshot
from disagg_exporter.page_cache import PageCache
from disagg_exporter.site import Site

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

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
    """What clients may take: connections at a time, and seconds for a request or for silence."""

    connections: int = 64
    client_seconds: float = 10.0


class MetricsServer:
    """Serves /metrics, /healthz, /readyz and a landing page until closed.

    Args:
        listen: Where; `parse_listen` makes it of a text.
        snapshot: Returns the latest snapshot at once; None before there is one.
        why_not_ready: Returns an empty text when ready, else the reason.
        heartbeat_age_seconds: How long ago the daemon's loop last came round.
        now_ns: The snapshot's clock.
        limits: What clients may take.
        access: Returns the conditions under which they are served now.
        name: What the landing page calls the node.
        lookback: What the node's books said before; who has it tells it of new snapshots.
    """

    def __init__(
        self,
        listen: ListenAddress,
        snapshot: Callable[[], Snapshot | None],
        why_not_ready: Callable[[], str],
        heartbeat_age_seconds: Callable[[], float],
        now_ns: Callable[[], int] = time.monotonic_ns,
        limits: Limits = Limits(),
        access: Callable[[], Access] = lambda: OPEN,
        name: str = "",
        lookback: Lookback | None = None,
    ) -> None:
        self._listen = listen
        self._limits = limits
        self._access = access
        landing = Landing(name, snapshot, lookback or Lookback(), now_ns)
        pages = PageCache(snapshot, now_ns)
        self._site = Site(pages, landing, why_not_ready, heartbeat_age_seconds)
        self._listener: socket.socket | None = None
        self._accepting = threading.Thread(target=self._accept, name="metrics", daemon=True)
        self._lock = threading.Lock()
        self._clients: dict[threading.Thread, Limited] = {}
        self._closing = threading.Event()
        self._was_full = False

    def start(self) -> ListenAddress:
        """Listen and serve; return the address with the port that was really taken.

        Raises:
            ListenError: The address cannot be listened on.
        """
        self._listener = open_listener(self._listen)
        self._accepting.start()
        return ListenAddress(self._listen.host, self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening, end every connection and wait for the threads."""
        self._closing.set()
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self._accepting.join()
        self._listener.close()
        with self._lock:
            clients = tuple(self._clients.items())
        for _, client in clients:
            with contextlib.suppress(OSError):
                # Of the plain socket: that of TLS would take the ground from under its thread.
                socket.socket.shutdown(client, socket.SHUT_RDWR)
        for thread, _ in clients:
            thread.join(self._limits.client_seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closing.is_set():
            try:
                accepted, peer = self._listener.accept()
            except OSError:
                # The end, or no file descriptor left: then trying at once again would spin.
                self._closing.wait(0.1)
                continue
            self._admit(LimitedSocket(fileno=accepted.detach()), peer)

    def _admit(self, client: LimitedSocket, peer: Any) -> None:
        thread = threading.Thread(target=self._serve, args=(client, peer), daemon=True)
        with self._lock:
            full = len(self._clients) >= self._limits.connections
            if not full:
                self._clients[thread] = client
        if full and not self._was_full:
            _log.warning("metrics page: %d connections are open, refusing more", len(self._clients))
        self._was_full = full
        if full:
            _refuse(client)
            return
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            with self._lock:
                del self._clients[thread]
            _refuse(client)

    def _serve(self, client: LimitedSocket, peer: Any) -> None:
        carrier: Limited = client
        try:
            access = self._access()
            if access.tls is not None:
                carrier = self._encrypted(client, access.tls, access.client_names)
            ConnectionHandler(carrier, peer, self._site, self._access, self._limits.client_seconds)
        except OSError as error:
            _log.debug("metrics page: %s went away: %s", peer, error)
        finally:
            with self._lock:
                self._clients.pop(threading.current_thread()).close()
            client.close()

    def _encrypted(
        self, client: LimitedSocket, context: ssl.SSLContext, names: frozenset[str]
    ) -> Limited:
        """Begin TLS; raises OSError where the client does not, or is not one of `names`."""
        from disagg_exporter.tls_socket import greet, speaks_tls, wrap

        client.limit(self._limits.client_seconds)
        if not speaks_tls(client):
            _refuse(client, _PLAIN_TO_TLS)
            raise ConnectionError("it does not speak TLS")
        wrapped = wrap(context, client)
        with self._lock:
            self._clients[threading.current_thread()] = wrapped
        if self._closing.is_set():  # then close() may have looked before
            raise ConnectionError("the server ends")
        wrapped.limit(self._limits.client_seconds)
        greet(wrapped, names)
        return wrapped


def _refuse(client: LimitedSocket, words: bytes = _FULL) -> None:
    with client, contextlib.suppress(OSError):
        client.limit(0.1)
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
