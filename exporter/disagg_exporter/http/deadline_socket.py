"""A TCP socket with a deadline for all its operations.

A plain socket timeout restarts with every byte, so a peer that sends slowly could hold its reader
for ever.
"""

from __future__ import annotations

import socket
import time
from typing import Any


class DeadlineSocket(socket.socket):
    """A socket on which everything after `limit()` shares one deadline.

    A subclass of another socket class, such as TLS, must inherit from this one first.
    """

    _deadline_seconds = float("inf")

    def limit(self, seconds: float) -> None:
        """Set the deadline to `seconds` from now."""
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
        """Set the next operation's timeout to the remaining time, or raise TimeoutError."""
        left = self._deadline_seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == float("inf") else left)
