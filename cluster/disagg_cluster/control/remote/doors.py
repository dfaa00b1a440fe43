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
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.control.remote.call_count import CallCount
from disagg_cluster.control.remote.vetting import PATIENCE_SECONDS, Streams, TurnedAwayError, Vet
from disagg_cluster.control.remote.visitors import Visitor, Visitors
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


class Door:
    """Accepts connections and forwards them to the server.

    Args:
        listener: Socket that accepts connections; closed with the proxy.
        inner: Path of the socket at which the server listens.
        vet: Identifies the client.
        visitors: Keeps the open connections.
        refused: Called for each refused connection.
        log: Logs refusals, a few per second at most.
        seconds: How long a connection may stay open without being authenticated.
    """

    def __init__(
        self,
        listener: socket.socket,
        inner: str,
        vet: Vet,
        visitors: Visitors,
        refused: Refused,
        log: logging.Logger,
        seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._listener = listener
        self._inner = inner
        self._vet = vet
        self._visitors = visitors
        self._refused = refused
        self._log = log
        self._seconds = seconds
        self._sayings = RateLimiter(_LINES_PER_SECOND)
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
                self._log.warning("control: nobody can be let in: %s", explain(error))
                await asyncio.sleep(_LOST_SECONDS)
                continue
            task = asyncio.create_task(self._connected(link, peer))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _connected(self, link: socket.socket, peer: Any) -> None:
        with link:
            visitor: Visitor | None = None
            try:
                visitor = self._enter(link, peer)
                await self._serve(visitor, link)
            except TurnedAwayError as error:
                self._turn_away(error.reason, visitor, str(error))
            except OSError:
                return
            except Exception:  # noqa: BLE001 - a defect of one connection must not end the others
                self._log.exception("control: a connection could not be served")
            finally:
                if visitor is not None:
                    self._visitors.leave(visitor)

    def _enter(self, link: socket.socket, peer: Any) -> Visitor:
        if is_scarce(link.fileno()):
            raise TurnedAwayError(RefusalReason.TOO_MANY, "no descriptors are left")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        # The peer name of a Unix socket is not an address.
        host, address = (peer[0], address_of(peer)) if isinstance(peer, tuple) else _HERE

        def end() -> None:
            loop.call_soon_threadsafe(task.cancel)

        visitor, displaced = self._visitors.enter(host, address, loop.time(), end)
        if displaced is not None:
            displaced.end()
            why = "the slowest of too many connections goes for another"
            self._turn_away(RefusalReason.TOO_MANY, displaced, why)
        return visitor

    async def _serve(self, visitor: Visitor, link: socket.socket) -> None:
        guest = await self._vet(link)
        reader, writer = guest.streams
        try:
            visitor.caller = guest.caller
            if guest.enough and not self._visitors.trust(visitor):
                raise TurnedAwayError(RefusalReason.TOO_MANY, "as many are connected as may be")
            patience = asyncio.get_running_loop().call_later(
                self._seconds, self._lose_patience, visitor, writer
            )
            calls = CallCount()
            try:
                inner = await self._to_server(visitor)
                asked_last = await _pass_between((reader, writer), inner, calls)
            finally:
                patience.cancel()
        finally:
            # Not a close, which would wait forever to flush data to a client that does not read.
            writer.transport.abort()
        if why := _unanswered(visitor, calls.begun, asked_last=asked_last):
            raise TurnedAwayError(RefusalReason.NOT_UNDERSTOOD, why)

    async def _to_server(self, visitor: Visitor) -> Streams:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.setblocking(False)
            link.bind(str(self._visitors.path(visitor)))
            await asyncio.get_running_loop().sock_connect(link, self._inner)
            return await asyncio.open_unix_connection(sock=link)
        except BaseException:
            link.close()
            raise

    def _lose_patience(self, visitor: Visitor, writer: asyncio.StreamWriter) -> None:
        if not visitor.trusted:
            why = f"no token was shown within {self._seconds:g} s"
            self._turn_away(RefusalReason.TOO_SLOW, visitor, why)
            visitor.is_told = True
            writer.transport.abort()

    def _turn_away(self, reason: RefusalReason, visitor: Visitor | None, why: str) -> None:
        self._refused("denied", reason)
        if self._sayings.take():
            where = "a client" if visitor is None else visitor.caller
            self._log.warning("control: %s is refused: %s", where, why)


def _unanswered(visitor: Visitor, begun: int, *, asked_last: bool) -> str:
    """Describes unanswered calls of a closed connection; empty if none, or already logged."""
    if visitor.is_told:
        return ""
    if (lost := begun - visitor.calls) > 0:
        return (
            f"{lost} of its {begun} calls did not come through: headers or a message too long, "
            "no such method, or broken off"
        )
    return "" if asked_last or visitor.calls else "it sent no request that could be understood"


async def _pass_between(outer: Streams, inner: Streams, calls: CallCount) -> bool:
    """Forward both directions until one ends; returns whether the outer one ended first.

    Counts the calls that the outer end begins.
    """
    up = asyncio.create_task(_pass_on(outer[0], inner[1], calls.take))
    down = asyncio.create_task(_pass_on(inner[0], outer[1]))
    try:
        ended, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        return up in ended
    finally:
        up.cancel()
        down.cancel()
        inner[1].transport.abort()
        await asyncio.gather(up, down, return_exceptions=True)


async def _pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    look: Callable[[bytes], None] = lambda _piece: None,
) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        look(piece)
        writer.write(piece)
        await writer.drain()
