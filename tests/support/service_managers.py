"""A service manager's real notify socket: a daemon's notifications arrive as datagrams."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path


class NotifySocket:
    """Receives notifications; `address` is the value for NOTIFY_SOCKET."""

    def __init__(self, folder: Path | None) -> None:
        """Bind in a folder, or without one in the abstract namespace."""
        name = f"disagg-test-{uuid.uuid4().hex}"
        self.address = f"@{name}" if folder is None else str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{name}" if folder is None else self.address)
        self._socket.settimeout(60)

    def next(self) -> str:
        """Wait for the next message and return it."""
        return self._socket.recv(4096).decode()

    def until(self, message: str) -> list[str]:
        """Return all messages up to this one."""
        seen = [self.next()]
        while seen[-1] != message:
            seen.append(self.next())
        return seen

    def waiting(self) -> list[str]:
        """Return all messages that have arrived and were not read."""
        seen = []
        self._socket.setblocking(False)
        try:
            while True:
                seen.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return seen
        finally:
            self._socket.settimeout(60)

    def is_silent(self, seconds: float) -> bool:
        """Return whether nothing arrives for this long."""
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(4096)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(60)
        return False

    def close(self) -> None:
        self._socket.close()
