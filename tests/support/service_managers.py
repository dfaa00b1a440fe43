"""A service manager's notify socket, real: what a daemon tells arrives as datagrams."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path


class NotifySocket:
    """Receives what is told; `address` is what NOTIFY_SOCKET is to say."""

    def __init__(self, folder: Path | None) -> None:
        """In a folder, or in the abstract namespace without one."""
        name = f"disagg-test-{uuid.uuid4().hex}"
        self.address = f"@{name}" if folder is None else str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{name}" if folder is None else self.address)
        self._socket.settimeout(60)

    def next(self) -> str:
        """The next message, awaited."""
        return self._socket.recv(4096).decode()

    def until(self, message: str) -> list[str]:
        """All messages up to this one."""
        seen = [self.next()]
        while seen[-1] != message:
            seen.append(self.next())
        return seen

    def waiting(self) -> list[str]:
        """All messages that have arrived and were not looked at."""
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
        """Whether nothing comes for so long."""
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
