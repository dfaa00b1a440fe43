"""A TCP socket with an end: past its deadline it refuses to go on.

A plain socket timeout begins again with every byte, so a peer that drips holds its reader for
ever.
"""

from __future__ import annotations

import socket
import time
from typing import Any


class DeadlineSocket(socket.socket):
    """A socket on which everything from `limit()` on shares one deadline.

    One of another kind, such as TLS, inherits from this before its kind.
    """

    _deadline_seconds = float("inf")

    def limit(self, seconds: float) -> None:
        """Allow `seconds` from now, in place of what was left."""
        self._deadline_seconds = time.monotonic() + seconds

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive, or raise TimeoutError at the deadline."""
        self.check_deadline()
        return super().recv_into(buffer, nbytes, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what fits, or raise TimeoutError at the deadline."""
        self.check_deadline()
        return super().send(data, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all, or raise TimeoutError at the deadline."""
        self.check_deadline()
        super().sendall(data, flags)

    def check_deadline(self) -> None:
        """Let the next operation take what is left of the time, or raise TimeoutError."""
        left = self._deadline_seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == float("inf") else left)
