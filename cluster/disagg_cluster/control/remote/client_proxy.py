"""Proxies in front of the gRPC server that identify each client before passing bytes on.

gRPC's own server reports neither the process at the other end of a Unix socket nor why a TLS
handshake failed. Connections are therefore accepted here, with the TLS settings of the metrics
page's web-config, and forwarded to the server over a local socket that only this user may open. All
of it runs on a separate thread, so that handshakes delay neither the accounting nor the engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import traceback
from collections.abc import AsyncIterator
from typing import Any, Protocol

from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.control.remote.authentication import (
    AUTHENTICATION_SECONDS,
    Authenticate,
    RejectedError,
    Streams,
)
from disagg_cluster.control.remote.call_count import CallCount
from disagg_cluster.control.remote.connections import ClientConnection, ClientConnections
from disagg_exporter.collectors import explain
from disagg_exporter.http.server.admission import address_of, is_scarce
from disagg_exporter.steps.rate_limiter import RateLimiter

_HERE = ("a process of this host", "this host")
_LOST_SECONDS = 1.0
_JUDGED_SECONDS = 0.1
_PIECE_BYTES = 1 << 16
_LINES_PER_SECOND = 5.0


class Refused(Protocol):
    """Called for each refused connection."""

    def __call__(self, outcome: str, reason: RefusalReason) -> None:
        """Count a refusal."""


class ClientProxy:
    """Accepts connections and forwards them to the server.

    Args:
        listener: Socket that accepts connections; closed with the proxy.
        inner: Path of the socket at which the server listens.
        authenticate: Identifies the client.
        connections: Keeps the open connections.
        refused: Called for each refused connection.
        log: Logs refusals, a few per second at most.
    """

    def __init__(
        self,
        listener: socket.socket,
        inner: str,
        authenticate: Authenticate,
        connections: ClientConnections,
        refused: Refused,
        log: logging.Logger,
    ) -> None:
        self._listener = listener
        self._inner = inner
        self._authenticate = authenticate
        self._connections = connections
        self._refused = refused
        self._log = log
        self._log_limiter = RateLimiter(_LINES_PER_SECOND)
        self._open: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Accept connections until the block ends, then close all of them."""
        self._listener.setblocking(False)
        accepting = asyncio.create_task(self._accept())
        try:
            yield
        finally:
            accepting.cancel()
            self._listener.close()
            if self._open:
                # Connections that the server has just closed are judged by the calls they made.
                await asyncio.wait(self._open, timeout=_JUDGED_SECONDS)
            for task in self._open:
                task.cancel()
            await asyncio.gather(accepting, *self._open, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, peer = await loop.sock_accept(self._listener)
            except (OSError, MemoryError) as error:
                # For example out of file descriptors, which may pass.
                self._log.warning("control: no connection can be accepted: %s", explain(error))
                await asyncio.sleep(_LOST_SECONDS)
                continue
            task = asyncio.create_task(self._connected(link, peer))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            # It begins, and what it displaces ends, before the next: a handshake takes 256 KiB.
            await asyncio.sleep(0)

    async def _connected(self, link: socket.socket, peer: Any) -> None:
        with link:
            connection: ClientConnection | None = None
            try:
                connection = self._enter(link, peer)
                await self._serve(connection, link)
            except RejectedError as error:
                self._reject(error.reason, connection, str(error))
            except OSError:
                return
            except Exception:  # noqa: BLE001 - a defect of one connection must not end the others
                self._log.exception("control: a connection could not be served")
            finally:
                if connection is not None:
                    self._connections.leave(connection)

    def _enter(self, link: socket.socket, peer: Any) -> ClientConnection:
        if is_scarce(link.fileno()):
            raise RejectedError(RefusalReason.TOO_MANY, "no descriptors are left")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        # The peer name of a Unix socket is not an address.
        host, address = (peer[0], address_of(peer)) if isinstance(peer, tuple) else _HERE

        def end() -> None:
            loop.call_soon_threadsafe(task.cancel)

        connection, displaced = self._connections.enter(host, address, loop.time(), end)
        if displaced is not None:
            displaced.end()
            why = "too many connections: the slowest one was closed for a new one"
            self._reject(RefusalReason.TOO_MANY, displaced, why)
        return connection

    async def _serve(self, connection: ClientConnection, link: socket.socket) -> None:
        client = await self._authenticate(link)
        reader, writer = client.streams
        try:
            connection.caller = client.caller
            if client.enough and not self._connections.trust(connection):
                raise RejectedError(RefusalReason.TOO_MANY, "too many clients are connected")
            timeout = asyncio.get_running_loop().call_later(
                AUTHENTICATION_SECONDS, self._time_out, connection, writer
            )
            calls = CallCount()
            try:
                with await self._to_server(connection) as inner:
                    asked_last = await _pass_between((reader, writer), inner, calls)
            finally:
                timeout.cancel()
        finally:
            # Not a close, which would wait forever to flush data to a client that does not read.
            writer.transport.abort()
        if why := _unanswered(connection, calls.begun, asked_last=asked_last):
            raise RejectedError(RefusalReason.NOT_UNDERSTOOD, why)

    async def _to_server(self, connection: ClientConnection) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.setblocking(False)
            link.bind(str(self._connections.path(connection)))
            await asyncio.get_running_loop().sock_connect(link, self._inner)
        except BaseException:
            link.close()
            raise
        return link

    def _time_out(self, connection: ClientConnection, writer: asyncio.StreamWriter) -> None:
        if not connection.trusted:
            why = f"no token was shown within {AUTHENTICATION_SECONDS:g} s"
            self._reject(RefusalReason.TOO_SLOW, connection, why)
            connection.is_logged = True
            writer.transport.abort()

    def _reject(self, reason: RefusalReason, connection: ClientConnection | None, why: str) -> None:
        self._refused("denied", reason)
        if self._log_limiter.take():
            where = "a client" if connection is None else connection.caller
            self._log.warning("control: %s is refused: %s", where, why)


def _unanswered(connection: ClientConnection, begun: int, *, asked_last: bool) -> str:
    """Describes unanswered calls of a closed connection; empty if none, or already logged."""
    if connection.is_logged:
        return ""
    if (lost := begun - connection.calls) > 0:
        return (
            f"{lost} of its {begun} calls did not come through: headers or a message too long, "
            "no such method, or broken off"
        )
    return "" if asked_last or connection.calls else "it sent no request that could be understood"


async def _pass_between(outer: Streams, inner: socket.socket, calls: CallCount) -> bool:
    """Forward both directions until one ends; returns whether the outer one ended first.

    Counts the calls that the outer end begins.
    """
    up = asyncio.create_task(_pass_up(outer[0], inner, calls))
    down = asyncio.create_task(_pass_down(inner, outer[1]))
    try:
        ended, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        # It also ends once the server closes what it writes to.
        is_outer = up in ended and (up.exception() is None or outer[0].exception() is not None)
        if not is_outer:
            # What the server answered before it closed is passed on all the same.
            await asyncio.wait((down,))
        return is_outer
    finally:
        up.cancel()
        down.cancel()
        for ended_by in await asyncio.gather(up, down, return_exceptions=True):
            if isinstance(ended_by, BaseException):
                # A reader keeps its error, whose frames keep the reader, as in `authentication`.
                traceback.clear_frames(ended_by.__traceback__)


async def _pass_up(reader: asyncio.StreamReader, server: socket.socket, calls: CallCount) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        calls.feed(piece)
        await asyncio.get_running_loop().sock_sendall(server, piece)


async def _pass_down(server: socket.socket, writer: asyncio.StreamWriter) -> None:
    # Not by a stream, which forgets what it has received once something cannot be sent.
    while piece := await asyncio.get_running_loop().sock_recv(server, _PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
