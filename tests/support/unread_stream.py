"""A gRPC client in raw HTTP/2 that lets the server send nothing on its streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACKNOWLEDGED = 1, 4, 1
_NO_WINDOW = bytes([0, 4, 0, 0, 0, 0])
"""The setting of the initial window of each stream: no byte."""


@contextlib.asynccontextmanager
async def unread_calls(path: Path, method: str, count: int) -> AsyncIterator[asyncio.StreamReader]:
    """Calls of a method with an empty message, on one connection; yields what reads from it."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, _NO_WINDOW))
        writer.write(_frame(_SETTINGS, _ACKNOWLEDGED, 0, b""))
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(_literal(name, value) for name, value in headers.items())
        for stream in range(1, 2 * count, 2):
            writer.write(_frame(_HEADERS, _END_HEADERS, stream, block))
            writer.write(_frame(_DATA, _END_STREAM, stream, bytes(5)))
        await writer.drain()
        yield reader
    finally:
        writer.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    """A header that is not indexed, without Huffman coding (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
