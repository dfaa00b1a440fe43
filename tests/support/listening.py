"""Real listeners on one port, by IPv4 and IPv6."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def listening(host: str, port: int = 0, *, both: bool = False) -> Iterator[socket.socket]:
    """Listen on an address; with `both`, an IPv6 address also accepts IPv4 connections."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        if ":" in host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        listener.bind((host, port))
        listener.listen()
        yield listener
