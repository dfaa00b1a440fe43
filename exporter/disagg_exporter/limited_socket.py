"""A TCP socket with an end: past its deadline, or its fill of bytes, it refuses to go on.

A plain socket timeout begins again with every byte, so a peer that drips holds its reader for
ever.
"""

from __future__ import annotations

import socket
import time
from typing import Any


class TooManyBytesError(OSError):
    """The peer sent more than the socket was told to take."""


class Limited(socket.socket):
    """What a socket of any kind needs so that all it does from `limit()` on shares one deadline.

    Mixed in before the kind of socket it limits.
    """

    _deadline_seconds = float("inf")
    _bytes_left = float("inf")

    def limit(self, seconds: float, max_bytes: float = float("inf")) -> None:
        """Allow `seconds` from now, and `max_bytes` to be received, in place of what was left."""
        self._deadline_seconds = time.monotonic() + seconds
        self._bytes_left = max_bytes

    def connect(self, address: Any) -> None:  # whatever the address family takes
        """Connect, or raise TimeoutError at the deadline."""
        self.brace()
        super().connect(address)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive, or raise TimeoutError at the deadline, or TooManyBytesError."""
        self.brace()
        count = super().recv_into(buffer, nbytes, flags)
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise TooManyBytesError("the peer sent too many bytes")
        return count

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what fits, or raise TimeoutError at the deadline."""
        self.brace()
        return super().send(data, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all, or raise TimeoutError at the deadline."""
        self.brace()
        super().sendall(data, flags)

    def brace(self) -> None:
        """Let the next operation take what is left of the time, or raise TimeoutError."""
        left = self._deadline_seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == float("inf") else left)


class LimitedSocket(Limited):
    """A plain socket on which everything from `limit()` on shares one deadline and one count."""
