"""The connection of one stream to the daemon's socket; it never blocks."""

from __future__ import annotations

import socket

# A buffer that bridges a daemon stalled for seconds; the kernel reduces it to its limit.
SEND_BUFFER_BYTES = 4 << 20


class Link:
    """A connection that may be closed. Its owner ensures that one thread at a time uses it.

    Args:
        path: The daemon's socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """Whether the daemon was reachable at the last use."""
        return self._socket is not None

    def open(self) -> None:
        """Try once to connect."""
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        try:
            link.setblocking(False)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            link.connect(self._path)
        except OSError:
            link.close()
            return
        self._socket = link

    def send(self, packet: bytes) -> bool:
        """Send one packet and return whether it was sent; disconnect if the peer is gone."""
        if self._socket is None:
            return False
        try:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
