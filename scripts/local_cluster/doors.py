"""Connections from the network outside to addresses inside."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from scripts.local_cluster.plan import Door

_CONNECT_SECONDS = 5.0
# For the rest of an answer after the client's end; from a cut-off machine none arrives.
_HALF_OPEN_SECONDS = 60.0


class OpenDoor:
    """Forwards connections from a listening socket of the network outside.

    Args:
        door: The door that it serves.
        descriptor: The socket's descriptor.
    """

    def __init__(self, door: Door, descriptor: int) -> None:
        self._door = door
        self._socket = socket.socket(fileno=descriptor)
        # The loop only keeps weak references to tasks.
        self._passing: set[asyncio.Task[None]] = set()

    async def open(self) -> asyncio.Server:
        """Start serving; the caller closes the server."""
        return await asyncio.start_server(self._let_through, sock=self._socket)

    async def _let_through(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                there = await asyncio.open_connection(self._door.address, self._door.inside_port)
        except OSError:  # no listener yet, or the link is cut
            writer.transport.abort()
            return
        ways = {
            asyncio.create_task(_pour(reader, there[1])),
            asyncio.create_task(_pour(there[0], writer)),
        }
        self._passing |= ways
        _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if rest:
            await asyncio.wait(rest, timeout=_HALF_OPEN_SECONDS)
        self._passing -= ways
        for way in rest:
            way.cancel()
        for each in (writer, there[1]):
            each.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
        writer.write_eof()
