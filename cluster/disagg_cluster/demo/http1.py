"""A small HTTP/1.1 server on asyncio: enough for an engine's few routes, keep-alive included.

Each answer is a coroutine; a client that disconnects cancels it, as in a real engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

_HEAD_BYTES = 16_384
_BODY_BYTES = 16_777_216
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request: the path without its query, and the whole body.

    `last`: the client wants no other answer on this connection (HTTP/1.0, or `Connection: close`).
    """

    method: str
    path: str
    body: bytes
    last: bool = False


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer; with `parts` its body is these, each sent as soon as it is available."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    parts: AsyncIterator[bytes] | None = None


Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class HttpConnection(asyncio.Protocol):
    """One client: reads requests one after another and answers each through `handler`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport for answers."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work for a client that has gone."""
        self._transport = None
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """Collect bytes; begin the next answer when a request is complete."""
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self._answering is not None or self._transport is None:
            return
        try:
            request = take_request(self._buffer)
        except ValueError as error:
            self._write(HttpAnswer(400, str(error).encode(), "text/plain"))
            self._transport.close()
            return
        if request is not None:
            self._answering = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: HttpRequest) -> None:
        answer = HttpAnswer(500, b"this is a bug of the stand-in engine", "text/plain")
        try:
            answer = await self._handler(request)
            if answer.parts is not None:
                self._write_head(answer, "Transfer-Encoding: chunked")
                async for part in answer.parts:
                    self._write_chunk(part)
                self._write_chunk(b"")
        finally:
            self._answering = None
            if self._transport is not None:
                if answer.parts is None:
                    self._write(answer)
                if request.last:
                    self._transport.close()
        self._next()

    def _write(self, answer: HttpAnswer) -> None:
        self._write_head(answer, f"Content-Length: {len(answer.body)}", answer.body)

    def _write_head(self, answer: HttpAnswer, length: str, body: bytes = b"") -> None:
        assert self._transport is not None
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Error')}\r\n"
            f"Content-Type: {answer.content_type}\r\n{length}\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + body)

    def _write_chunk(self, part: bytes) -> None:
        assert self._transport is not None
        self._transport.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def take_request(buffer: bytearray) -> HttpRequest | None:
    """Cut the first complete request off `buffer`; None while more bytes are needed.

    Raises:
        ValueError: these bytes are not a supported request; the text says why.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _HEAD_BYTES:
            raise ValueError("the head of the request is too long")
        return None
    first, *headers = buffer[:end].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise ValueError("not an HTTP/1.1 request")
    length, last = 0, words[2] == "HTTP/1.0"
    for header in headers:
        name, _, value = header.partition(":")
        if name.strip().lower() == "connection":
            last = last or value.strip().lower() == "close"
        if name.strip().lower() == "content-length":
            length = int(value) if value.strip().isdecimal() else -1
        if name.strip().lower() == "transfer-encoding":
            raise ValueError("send the body with a Content-Length")
    if not 0 <= length <= _BODY_BYTES:
        raise ValueError("bad Content-Length")
    if len(buffer) < end + 4 + length:
        return None
    body = bytes(buffer[end + 4 : end + 4 + length])
    del buffer[: end + 4 + length]
    return HttpRequest(words[0], words[1].partition("?")[0], body, last)
