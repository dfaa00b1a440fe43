"""The requests of one connection as they come in: never more than the cap of a head is kept."""

from __future__ import annotations

import socket

from disagg_exporter.http.deadline_socket import Limited
from disagg_exporter.http.server.request_head import (
    MAX_HEAD_BYTES,
    RequestHead,
    end_of_head,
    parse_head,
)

# Into which everybody reads what nobody wants.
_SCRAP = bytearray(65536)


class RequestReader:
    """Reads heads one after the other."""

    def __init__(self, client: Limited) -> None:
        self._client = client
        self._received = bytearray()
        self._searched_bytes = 0

    @property
    def is_amid_head(self) -> bool:
        """Whether a head has begun and not ended."""
        return bool(self._received)

    def take(self) -> RequestHead | None:
        """The next head, if all of it has been received.

        Raises:
            HeadError: It is no head that we take; nothing more can be read.
        """
        end = end_of_head(self._received, self._searched_bytes)
        if end is None:
            self._searched_bytes = len(self._received)
            return None
        head = bytes(self._received[:end])
        del self._received[:end]
        self._searched_bytes = 0
        return parse_head(head)

    def receive(self, *, waits: bool = True) -> bool:
        """Receive a piece; False if the client sends no more.

        Raises:
            BlockingIOError: There is nothing now, and it is not to be waited for.
            OSError: The connection broke, or the deadline passed.
        """
        piece = bytearray(MAX_HEAD_BYTES - len(self._received))
        count = self._client.recv_into(piece, len(piece), _flags(waits=waits))
        self._received += memoryview(piece)[:count]
        return count > 0

    def read_head(self) -> RequestHead | None:
        """Wait for the next head; None if the client ends before. Raises as the two above."""
        while (head := self.take()) is None:
            if not self.receive():
                return None
        return head

    def discard(self, *, waits: bool = True) -> int:
        """Receive a piece and keep nothing; return its bytes, 0 at the end. Raises as `receive`."""
        self._received.clear()
        return self._client.recv_into(_SCRAP, len(_SCRAP), _flags(waits=waits))


def _flags(*, waits: bool) -> int:
    return 0 if waits else socket.MSG_DONTWAIT
