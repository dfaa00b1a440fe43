"""Fetches pages from many servers on one thread; a hanging server delays no other.

An exception in one fetch becomes its result and does not affect the others.

Connections are kept if their server allows it: a new one costs as much as the page.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disagg_exporter.http.client.exchange import Address, FetchRequest, FetchResult, ResponseParser
from disagg_exporter.http.client.unreachable import EngineRefused, EngineUnreachable, ResponseError
from disagg_exporter.http.tls_errors import TlsError, TlsFault

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import TlsChannel

_READ_BYTES = 256 * 1024


@dataclass(slots=True, eq=False)
class _Conn:
    """A connection with a request in flight, or kept after its answer.

    `sock` is the `plain` socket or the TLS channel on it; `tls` is that channel too.
    """

    plain: socket.socket
    sock: socket.socket | TlsChannel
    request: FetchRequest
    parser: ResponseParser
    end_seconds: float
    unsent: bytes
    untried: tuple[Address, ...] = field(default=(), repr=False)
    tls: TlsChannel | None = None
    reused: bool = False
    answered: bool = False


class PagePoller:
    """The requests in flight. Only `wake` may be called from another thread.

    Args:
        max_bytes: The largest accepted page.
        keep: Whether connections are kept for the next request.
    """

    def __init__(self, max_bytes: int, *, keep: bool = True) -> None:
        self._max_bytes = max_bytes
        self._keep = keep
        self._connections: dict[str, _Conn] = {}
        self._results: list[FetchResult] = []
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._ending, self._ended = threading.Lock(), False
        with contextlib.ExitStack() as undo:
            # On an error, close what was opened: a kept exception would keep it open.
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._waking = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._waking)
            self._selector.register(self._waking, selectors.EVENT_READ)
            undo.pop_all()

    def submit(self, request: FetchRequest) -> None:
        """Start a fetch; `poll` returns its result."""
        with self._guarded(request):
            self._submit(request, time.monotonic() + request.deadline_seconds)

    def _submit(self, request: FetchRequest, end_seconds: float) -> None:
        kept = self._connections.get(request.key)
        if kept is None or not kept.answered or not _same_server(kept.request, request):
            self.forget(request.key)
            self._connect(request, end_seconds, request.addresses)
            return
        kept.request, kept.end_seconds = request, end_seconds
        kept.parser = ResponseParser(self._max_bytes)
        kept.unsent, kept.reused, kept.answered = request.encoded(keep=self._keep), True, False
        if kept.tls is not None:
            kept.tls.begin_answer()
        self._send(kept)

    def poll(self) -> list[FetchResult]:
        """Wait until there is a result, or another thread calls `wake`."""
        while not self._results:
            ends = [conn.end_seconds for conn in self._connections.values() if not conn.answered]
            wait_seconds = max(min(ends) - time.monotonic(), 0.0) if ends else None
            woken = False
            for key, _ in self._selector.select(wait_seconds):
                if key.data is None:
                    os.eventfd_read(self._waking)
                    woken = True
                else:
                    self._go_on(key.data)
            now_seconds = time.monotonic()
            for conn in tuple(self._connections.values()):
                if not conn.answered and conn.end_seconds <= now_seconds:
                    with self._guarded(conn.request):
                        self._fail(conn, f"no whole answer in {conn.request.deadline_seconds:g} s")
            if woken:
                break
        results, self._results = self._results, []
        return results

    def wake(self) -> None:
        """Let the current or next `poll` return at once; does nothing after `close`."""
        # After closing, the number may belong to another descriptor.
        with self._ending:
            if not self._ended:
                os.eventfd_write(self._waking, 1)

    def forget(self, key: str) -> None:
        """Close a server's connection; its request has no result."""
        if conn := self._connections.get(key):
            self._drop(conn)

    def close(self) -> None:
        """Close all connections; the poller cannot be used again."""
        for conn in tuple(self._connections.values()):
            self._drop(conn)
        self._selector.close()
        with self._ending:
            self._ended = True
            os.close(self._waking)

    @contextlib.contextmanager
    def _guarded(self, request: FetchRequest) -> Iterator[None]:
        """Turn an exception in the block into the request's result."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one server is not to end what others are asked
            self.forget(request.key)
            self._finish(request, error)

    def _connect(
        self, request: FetchRequest, end_seconds: float, untried: tuple[Address, ...]
    ) -> None:
        if request.tls is None and request.url.startswith("https:"):
            # Never send plain text where TLS was intended.
            raise TlsError(TlsFault.NO_TRUST)
        parser, payload = ResponseParser(self._max_bytes), request.encoded(keep=self._keep)
        why = "the host has no address"
        for number, (family, address) in enumerate(untried, 1):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError as error:
                why = error.strerror or type(error).__name__
                continue
            with contextlib.ExitStack() as unless_kept:
                unless_kept.callback(sock.close)
                code = sock.connect_ex(address)
                if code not in (0, errno.EINPROGRESS):
                    why = os.strerror(code)
                    continue
                conn = _Conn(sock, sock, request, parser, end_seconds, payload, untried[number:])
                if request.tls is not None:
                    conn.sock = conn.tls = request.tls.channel(sock, request.host)
                self._selector.register(conn.sock, selectors.EVENT_READ, conn)
                self._connections[request.key] = conn
                unless_kept.pop_all()
            # On the same host the connection is established at once.
            self._send(conn)
            return
        self._finish(request, EngineUnreachable(f"{request.url}: {why}"))

    def _go_on(self, conn: _Conn) -> None:
        if conn.answered:
            # Unsolicited data; most likely the server closes the connection.
            self._drop(conn)
            return
        with self._guarded(conn.request):
            if not conn.unsent:
                self._receive(conn)
            elif code := conn.plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._lost(conn, os.strerror(code))
            else:
                self._send(conn)

    def _send(self, conn: _Conn) -> None:
        try:
            conn.unsent = conn.unsent[conn.sock.send(conn.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(conn, error.strerror or type(error).__name__)
            return
        event = selectors.EVENT_WRITE if conn.unsent else selectors.EVENT_READ
        if conn.tls is not None:
            event = conn.tls.awaits(conn.unsent)
        if self._selector.get_key(conn.sock).events != event:
            self._selector.modify(conn.sock, event, conn)

    def _receive(self, conn: _Conn) -> None:
        """Read all that has arrived: an answer that arrived in time counts, even if read late."""
        while self._receive_some(conn):
            pass

    def _receive_some(self, conn: _Conn) -> bool:
        """Read a part of an answer; return whether more may be available now."""
        try:
            count = conn.sock.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            self._lost(conn, error.strerror or type(error).__name__)
            return False
        if count:
            whole = conn.parser.feed(bytes(self._buffer[:count]))
        elif conn.reused and not conn.parser.begun:
            self._lost(conn, "")
            return False
        else:
            conn.parser.end()
            whole = True
        if whole and conn.parser.status != 200:
            url, status = conn.request.url, conn.parser.status
            # The cause omits the status, which may change at each scrape.
            cause = f"{url}: does not answer 200"
            why = f"{url}: answers {status} instead of 200"
            self._refuse(conn, EngineRefused(why, cause=cause, status=status))
        elif whole:
            page = conn.parser.body
            if self._keep and conn.parser.keeps_open:
                conn.answered, conn.parser = True, ResponseParser(self._max_bytes)
            else:
                self._hang_up(conn)
            self._finish(conn.request, page)
        return not whole

    def _lost(self, conn: _Conn, why: str) -> None:
        """Retry on other addresses: a kept connection may have been closed during the request."""
        if conn.tls is not None and (said := conn.tls.last_words()) is not None:
            raise said
        untried = conn.request.addresses if conn.reused else conn.untried
        if untried and not conn.parser.begun:
            self._hang_up(conn)
            self._connect(conn.request, conn.end_seconds, untried)
        else:
            # A server without TLS, or one that requires our certificate, may just close.
            unanswered = conn.tls is not None and not conn.parser.begun
            self._fail(conn, why, TlsFault.HUNG_UP if unanswered else None)

    def _fail(self, conn: _Conn, why: str, tls_fault: TlsFault | None = None) -> None:
        self._refuse(conn, EngineUnreachable(f"{conn.request.url}: {why}", tls_fault=tls_fault))

    def _refuse(self, conn: _Conn, error: EngineUnreachable) -> None:
        self._hang_up(conn)
        self._finish(conn.request, error)

    def _finish(self, request: FetchRequest, page: bytes | Exception) -> None:
        if isinstance(page, TlsError):
            page = EngineUnreachable.by_tls(request.url, page)
        elif isinstance(page, ResponseError):
            page = EngineUnreachable(f"{request.url}: {page}", tls_fault=page.tls_fault)
        self._results.append(FetchResult(request, page))

    def _hang_up(self, conn: _Conn) -> None:
        del self._connections[conn.request.key]
        try:
            self._selector.unregister(conn.sock)
        finally:
            conn.sock.close()

    def _drop(self, conn: _Conn) -> None:
        """Close a connection, ignoring errors: no request depends on it."""
        with contextlib.suppress(Exception):
            self._hang_up(conn)


def _same_server(kept: FetchRequest, request: FetchRequest) -> bool:
    """Return whether a connection for one request can be used for another."""
    return kept.addresses == request.addresses and kept.tls is request.tls
