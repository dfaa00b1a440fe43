"""The gRPC server: serves the versioned service from the same core as the Unix socket.

It listens only where the proxies can reach it, and looks up clients in `ClientConnections`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.messages import ControlReply, ReplyOutcome
from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.control.remote.coding import (
    METHODS,
    REPLY_METADATA,
    SERVICE,
    Rpc,
    decode_call,
    encode_answer,
    encode_status,
    encode_trailing,
)
from disagg_cluster.control.remote.connections import ClientConnection, ClientConnections
from disagg_cluster.control.remote.status_codes import code_name, details
from disagg_cluster.control.remote.token_file import TokenFile, digest_of
from disagg_cluster.control.wire import MOST_BYTES, WireError
from disagg_exporter.steps.rate_limiter import RateLimiter

GRACE_SECONDS = 1.0
WRITE_SECONDS = 5.0
"""Time limit for a client to accept one reply of a stream."""

_LINES_PER_SECOND = 5.0
_MOST_CALLS = 256
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 32),
    # Requests over the limit are still read up to this size, to refuse them with a message; gRPC
    # rejects larger ones, and the proxy logs that a call was lost.
    ("grpc.max_receive_message_length", 16 * MOST_BYTES),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
    ("grpc.server_handshake_timeout_ms", 5000),
    # Detects clients that no longer read.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
)

Context: TypeAlias = grpc.aio.ServicerContext


class ControlServer:
    """Answers calls until it is stopped.

    Args:
        core: Answers requests.
        connections: Identifies the caller of each call.
        log: Logs calls that were refused before they reached the core.
        token: The required token; None if none is.
    """

    def __init__(
        self,
        core: ControlCore,
        connections: ClientConnections,
        log: logging.Logger,
        token: TokenFile | None = None,
    ) -> None:
        self._core = core
        self._connections = connections
        self._log = log
        self._token = token
        self._log_limiter = RateLimiter(_LINES_PER_SECOND)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on a socket at `path`, in a folder that only this user may enter."""
        asked = _RequireToken(self._has_token, self._refuse)
        server = grpc.aio.server(
            interceptors=() if self._token is None else (asked,),
            options=_OPTIONS,
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        methods = {method.name: self._handler(method) for method in METHODS.values()}
        own = grpc.method_handlers_generic_handler(SERVICE, methods)
        standard = grpc.method_handlers_generic_handler(
            health.SERVICE_NAME, {"Check": self._health_handler(), "Watch": self._health_watch()}
        )
        server.add_generic_rpc_handlers((own, standard))
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._server = server
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        try:
            yield
        finally:
            await self.end()

    async def end(self) -> None:
        """Notify health clients, give calls a grace period, then end them."""
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)

    def _handler(self, method: Rpc) -> grpc.RpcMethodHandler:
        if method.streams:
            return grpc.unary_stream_rpc_method_handler(partial(self._stream, method))
        return grpc.unary_unary_rpc_method_handler(partial(self._once, method))

    async def _stream(self, method: Rpc, data: bytes, context: Context) -> None:
        async with contextlib.aclosing(self._replies(method, data, context)) as replies:
            async for reply in replies:
                await self._send(encode_answer(reply), context)

    async def _send(self, answer: bytes, context: Context) -> None:
        """Send one reply of a stream; ends the call if its client has gone, or accepts nothing."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await context.write(answer)
        except grpc.aio.BaseError:
            raise asyncio.CancelledError from None
        except TimeoutError:
            connection = self._connections.by_peer(context.peer())
            if connection is not None and not connection.is_logged:
                connection.is_logged = True
                accepts = f"accepts nothing for {WRITE_SECONDS:g} s: its connection is ended"
                self._warn(f"{connection.caller} {accepts}")
                # The call alone would stay: its end could not be sent to the client either.
                connection.end()
            raise asyncio.CancelledError from None

    async def _once(self, method: Rpc, data: bytes, context: Context) -> bytes:
        replies = [reply async for reply in self._replies(method, data, context)]
        return encode_status(replies) if method.verb == "status" else encode_answer(replies[-1])

    async def _replies(
        self, method: Rpc, data: bytes, context: Context
    ) -> AsyncGenerator[ControlReply, None]:
        connection = await self._connection_of(context)
        try:
            request = decode_call(method, data, context.time_remaining())
        except WireError as error:
            reason = RefusalReason.NOT_UNDERSTOOD
            self._warn(f"{connection.caller} asked for what is not understood: {error}")
            self._core.count("unknown", ReplyOutcome.INVALID, reason)
            invalid = ReplyOutcome.INVALID
            await _abort(context, ControlReply("", invalid, problems=error.problems, reason=reason))
            return
        async with contextlib.aclosing(self._core.answer(request, connection.caller)) as replies:
            async for reply in replies:
                if code_name(reply) != "OK":
                    await _abort(context, reply)
                yield reply

    async def _connection_of(self, context: Context) -> ClientConnection:
        """The connection of a call; aborts the call if it is unknown or over the limit."""
        connection = self._connections.by_peer(context.peer())
        if connection is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "come through the proxy")
        assert connection is not None, "an abort raises"
        connection.calls += 1
        # The token was checked before the call got here.
        if not self._connections.trust(connection):
            reason, why = RefusalReason.TOO_MANY, "too many clients are connected"
            self._core.count("unknown", "busy", reason)
            refused = ReplyOutcome.REFUSED
            await _abort(context, ControlReply("", refused, why, "try again", reason=reason))
        return connection

    def _health_handler(self) -> grpc.RpcMethodHandler:
        async def check(request: Any, context: Context) -> Any:
            await self._connection_of(context)
            return await self._health.Check(request, context)

        return grpc.unary_unary_rpc_method_handler(check, *_HEALTH_CODING)

    def _health_watch(self) -> grpc.RpcMethodHandler:
        async def watch(request: Any, context: Context) -> None:
            await self._connection_of(context)
            await self._health.Watch(request, context)

        return grpc.unary_stream_rpc_method_handler(watch, *_HEALTH_CODING)

    def _has_token(self, metadata: Any) -> bool:
        assert self._token is not None
        said = [value for key, value in metadata or () if key == "authorization"]
        scheme, _, token = str(said[0] if len(said) == 1 else "").partition(" ")
        given = digest_of(token.strip().encode())
        return hmac.compare_digest(given, self._token.digest) and scheme.lower() == "bearer"

    async def _refuse(self, _requests: Any, context: Context) -> None:
        connection = self._connections.by_peer(context.peer())
        caller = "nobody" if connection is None else str(connection.caller)
        if connection is not None:
            connection.calls += 1
        self._core.count("unknown", "denied", RefusalReason.UNAUTHENTICATED)
        self._warn(f"{caller} is refused: it shows no token, or a wrong one")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authorization: Bearer TOKEN")

    def _warn(self, text: str) -> None:
        if self._log_limiter.take():
            self._log.warning("control: %s", text)


class _RequireToken(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Ends a call without the token before reading anything else from it."""

    def __init__(self, has_token: Callable[[Any], bool], refuse: Callable[..., Any]) -> None:
        self._has_token = has_token
        # Answers without reading a request message, which the client may send slowly.
        self._refuse = grpc.stream_stream_rpc_method_handler(refuse)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        if self._has_token(details.invocation_metadata):
            return await continuation(details)
        return self._refuse


_HEALTH_CODING = (
    health_pb2.HealthCheckRequest.FromString,
    health_pb2.HealthCheckResponse.SerializeToString,
)


async def _abort(context: Context, reply: ControlReply) -> None:
    """End a call with the reply's status code; raises."""
    code = grpc.StatusCode[code_name(reply)]
    trailing = ((REPLY_METADATA, encode_trailing(reply)),)
    await context.abort(code, details(reply), trailing)
