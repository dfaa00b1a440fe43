"""The Unix socket in the run folder at which a daemon answers requests.

One request per connection. Slow, flooding, malformed or vanished clients are bounded in time, bytes
and number, and never delay the engines, the daemon's loop or other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.messages import ControlReply, ReplyOutcome, WatchStatus, local_caller
from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.control.wire import MOST_BYTES, WireError, decode_request, encode_reply
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus
from disagg_exporter.steps.local_sockets import (
    FileIdentity,
    PeerLink,
    identity_of,
    listening_socket,
    peer_credentials,
    unlink_if_same,
)
from disagg_exporter.steps.rate_limiter import RateLimiter

COLLECTOR = "control"

_READ_SECONDS = 5.0
_WRITE_SECONDS = 5.0
_POLL_SECONDS = 1.0
_LINGER_SECONDS = 0.5
_MOST_CONNECTIONS = 32
_LINES_PER_SECOND = 5.0


class ControlSocket:
    """Serves a core at a socket path, to root and the daemon's own user only.

    Args:
        path: The socket's path; its mode is 0600 and it is recreated if it disappears.
        core: Answers requests.
        log: Logs refused clients and failures to create the socket.
        users: The user ids that may connect.
        read_seconds, write_seconds: Time limits for a client to send its request and to read one
            reply.
        most_connections: Maximum number of concurrent connections.
    """

    def __init__(
        self,
        path: Path,
        core: ControlCore,
        log: logging.Logger,
        *,
        users: Collection[int] | None = None,
        read_seconds: float = _READ_SECONDS,
        write_seconds: float = _WRITE_SECONDS,
        most_connections: int = _MOST_CONNECTIONS,
    ) -> None:
        self._path = path
        self._core = core
        self._log = log
        self._users = frozenset((0, os.geteuid()) if users is None else users)
        self._read_seconds = read_seconds
        self._write_seconds = write_seconds
        self._most_connections = most_connections
        self._server: asyncio.Server | None = None
        self._file: FileIdentity | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Timeout, PeerLink] = {}
        self._health = CollectorHealth(
            COLLECTOR,
            log,
            failing="no requests can be answered: ",
            recovered="requests are answered again",
            level=logging.ERROR,
        )
        self._log_limiter = RateLimiter(_LINES_PER_SECOND)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer until the block ends; if the socket cannot be created, retry until it can."""
        await self.check()
        maintaining = asyncio.create_task(self._maintain())
        try:
            yield
        finally:
            maintaining.cancel()
            await asyncio.gather(maintaining, return_exceptions=True)
            await self._close()

    async def check(self) -> None:
        """Recreate a missing or replaced socket; release the slots of vanished clients."""
        now_seconds = asyncio.get_running_loop().time()
        for waiting, link in tuple(self._waiting.items()):
            if _is_disconnected(link):
                del self._waiting[waiting]
                waiting.reschedule(now_seconds)
        with self._health.round():
            if self._server is None or identity_of(self._path) != self._file:
                await self._listen()

    def status(self) -> CollectorStatus:
        """The collector `control`; failed while no requests can be answered."""
        return self._health.status()

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await self.check()

    async def _listen(self) -> None:
        if self._server is not None:
            self._log.warning("%s has vanished or was replaced: recreated", self._path)
            self._server.close()
            self._server = None
        listening = listening_socket(self._path, kind=socket.SOCK_STREAM)
        self._file = identity_of(self._path)
        try:
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listening, limit=MOST_BYTES
            )
        except BaseException:
            listening.close()
            raise

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        unlink_if_same(self._path, self._file)
        self._core.end_watches()
        if self._watching:
            await asyncio.wait(self._open, timeout=_LINGER_SECONDS)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._core.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            # Also reached when the daemon ends: asyncio would log a cancelled task as an error.
            writer.transport.abort()
        except Exception:  # noqa: BLE001 - a defect of one request must not end the daemon
            self._log.exception("control: a request could not be answered")
            self._core.count("unknown", ReplyOutcome.FAILED)
            writer.transport.abort()
        finally:
            self._open.discard(task)
            self._watching.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Each write must be read in time: nothing is buffered for a client that does not read.
        writer.transport.set_write_buffer_limits(high=0)
        pid, uid = peer_credentials(writer.get_extra_info("socket"))
        caller = local_caller(uid, pid)
        if uid not in self._users:
            reason = RefusalReason.NOT_ALLOWED
            self._core.count("unknown", "denied", reason)
            self._warn("control: %s is refused: only root and this daemon's user may ask", caller)
            why = "only root and the daemon's own user may ask"
            way_out = "ask as one of them"
            refused = ControlReply("", ReplyOutcome.REFUSED, why, way_out, reason=reason)
            await self._refuse(reader, writer, refused)
            return
        # Watches have their own limit.
        if len(self._open) - len(self._watching) > self._most_connections:
            reason = RefusalReason.TOO_MANY
            self._core.count("unknown", "busy", reason)
            self._warn("control: %s is refused: too many requests at a time", caller)
            why = f"{self._most_connections} requests are being answered"
            refused = ControlReply("", ReplyOutcome.REFUSED, why, "try again", reason=reason)
            await self._refuse(reader, writer, refused)
            return
        try:
            line = await self._read(reader)
            if not line:
                return
            request = decode_request(line)
        except WireError as error:
            reason, said = RefusalReason.NOT_UNDERSTOOD, ReplyOutcome.INVALID
            self._core.count("unknown", said, reason)
            self._warn("control: %s asked for what is not understood: %s", caller, error)
            invalid = ControlReply(error.request_id, said, problems=error.problems, reason=reason)
            await self._refuse(reader, writer, invalid)
            return
        task = asyncio.current_task()
        if isinstance(request.verb, WatchStatus) and task is not None:
            self._watching.add(task)
        link = writer.get_extra_info("socket")
        async with (
            self._while_connected(link),
            contextlib.aclosing(self._core.answer(request, caller)) as replies,
        ):
            async for reply in replies:
                await self._write(writer, reply)

    @contextlib.asynccontextmanager
    async def _while_connected(self, link: PeerLink) -> AsyncIterator[None]:
        """Raise TimeoutError in the block on disconnect: the next reply may take hours."""
        async with asyncio.timeout(None) as waiting:
            self._waiting[waiting] = link
            try:
                yield
            finally:
                self._waiting.pop(waiting, None)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """The request line; empty if the client closed without sending one."""
        try:
            async with asyncio.timeout(self._read_seconds):
                return await reader.readuntil(b"\n")
        except TimeoutError:
            raise WireError((f"no whole line within {self._read_seconds:g} s",)) from None
        except asyncio.LimitOverrunError:
            raise WireError((f"the request is longer than {MOST_BYTES} bytes",)) from None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise WireError(("the request ends without a line end",)) from None
            return b""

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: ControlReply
    ) -> None:
        await self._write(writer, reply)
        # Closing with unread input would discard the reply before the client reads it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                await reader.read(MOST_BYTES)

    async def _write(self, writer: asyncio.StreamWriter, reply: ControlReply) -> None:
        writer.write(encode_reply(reply))
        # Not `wait_for`: before Python 3.12 it may lose the cancellation that ends the daemon.
        async with asyncio.timeout(self._write_seconds):
            await writer.drain()

    def _warn(self, text: str, *arguments: object) -> None:
        if self._log_limiter.take():
            self._log.warning(text, *arguments)


def _is_disconnected(link: PeerLink) -> bool:
    """Whether the peer has fully closed the connection, not only its sending side."""
    if link.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(link, 0)
    return bool(poll.poll(0))
