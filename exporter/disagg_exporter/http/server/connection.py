"""One HTTP connection of a client: answers its requests one after the other."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disagg_exporter.http.server.admission import (
    Refusal,
    RefusalCounts,
    refusal_by_status,
    refusal_of,
)
from disagg_exporter.http.server.authentication import Access
from disagg_exporter.http.server.connections import Connection
from disagg_exporter.http.server.reception import LINGER_BYTES, LINGER_SECONDS
from disagg_exporter.http.server.request import HeadError, RequestHead, RequestReader
from disagg_exporter.http.server.routes import Response, Site, refusal, response_head

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

_SMALL_BODY_BYTES = 4096
# Requests that a client may send before it has the previous answer: no common client does, and one
# that never reads could cause endless work.
_REQUESTS_AHEAD = 4


@dataclass(slots=True, eq=False)
class ConnectionHandler:
    """Serves a connection until its end; `seconds` limits a request, an answer and idle time.

    `access` returns the present conditions, which may change during a connection. If they require
    another `tls` than the connection has, it is closed, so that the client reconnects.
    """

    connection: Connection
    reader: RequestReader
    tls: ssl.SSLContext | None
    site: Site
    access: Callable[[], Access]
    refusals: RefusalCounts
    seconds: float
    _requests_ahead: int = field(default=0, init=False)

    def serve(self, head: RequestHead | None) -> None:
        """Answer all requests; the first may have been read already.

        Raises:
            OSError: The client disconnected, or took too long for a request or an answer.
        """
        # Head and body are separate writes; the second must not wait for the first one's ACK.
        self.connection.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = head or self._next_head(is_first=True)
        while head is not None:
            self.connection.begin()
            self.connection.client.limit(self.seconds)
            self._requests_ahead += self.reader.is_amid_head
            access = self.access()
            if self.tls is None and access.tls is not None:
                raise ConnectionError("it must be encrypted now")
            keeps = head.keeps and self._requests_ahead < _REQUESTS_AHEAD
            keeps = keeps and access.tls is self.tls
            self._answer(head, access, keeps=keeps)
            if not keeps:
                if head.has_body or self.reader.is_amid_head:
                    self._linger()
                return
            head = self._next_head(is_first=False)

    def _next_head(self, *, is_first: bool) -> RequestHead | None:
        self.connection.client.limit(self.seconds)
        try:
            return self.reader.read_head()
        except HeadError as error:
            self.refusals.add(refusal_of(error), self.connection.address)
            self.connection.client.sendall(refusal(error))
            self._linger()
            return None
        except TimeoutError:
            # An idle client that has been answered is not refused, only no longer waited for.
            if is_first or self.reader.is_amid_head:
                self.refusals.add(Refusal.TIMEOUT, self.connection.address)
            raise

    def _answer(self, head: RequestHead, access: Access, *, keeps: bool) -> None:
        answer = access.refusal(head.header("authorization"))
        if answer is not None and (reason := refusal_by_status(answer.status)):
            self.refusals.add(reason, self.connection.address)
        if answer is None:
            accept, encodings = head.header("accept"), head.header("accept-encoding")
            answer = self.site.answer(head.method, head.target, accept, encodings)
        # Before the answer's first byte, so that clients are ordered by when they were answered,
        # however late this thread continues.
        self.connection.begin()
        try:
            self._send(answer, access.headers, keeps=keeps, with_body=head.method != "HEAD")
        except TimeoutError:
            self.refusals.add(Refusal.TIMEOUT, self.connection.address)
            raise
        _log.debug("metrics page: %s %s: %d", head.method, head.target, answer.status)

    def _send(
        self, answer: Response, extra: tuple[tuple[str, str], ...], *, keeps: bool, with_body: bool
    ) -> None:
        head = response_head(answer, extra, keeps=keeps)
        body = answer.body if with_body else b""
        if len(body) <= _SMALL_BODY_BYTES:
            self.connection.client.sendall(head + body)
            return
        self.connection.client.sendall(head)
        self.connection.client.sendall(body)

    def _linger(self) -> None:
        self.connection.begin()
        self.connection.client.limit(min(self.seconds, LINGER_SECONDS))
        with contextlib.suppress(OSError):
            # On the plain socket, because a TLS client need not confirm the end.
            socket.socket.shutdown(self.connection.client, socket.SHUT_WR)
            left_bytes = LINGER_BYTES
            while left_bytes > 0 and (count := self.reader.discard()):
                left_bytes -= count
