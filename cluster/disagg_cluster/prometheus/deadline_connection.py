"""Connections of urllib3 with one deadline for everything from connecting on."""

from __future__ import annotations

import socket
import time
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from disagg_exporter.http.deadline_socket import DeadlineSocket


class DeadlineConnection(HTTPConnection):
    """A connection with one deadline for everything from connecting on.

    urllib3 sets `timeout` to the remaining time before connecting, and again before reading.
    """

    def _new_conn(self) -> socket.socket:
        end_seconds = time.monotonic() + float(self.timeout or 0.0)
        limited = DeadlineSocket(fileno=super()._new_conn().detach())
        left_seconds = max(end_seconds - time.monotonic(), 0.001)
        limited.limit(left_seconds)
        limited.settimeout(left_seconds)  # for the TLS handshake
        return limited

    def getresponse(self) -> Any:
        """Return the head of the response, within the remaining time."""
        if isinstance(self.sock, DeadlineSocket):
            self.sock.limit(float(self.timeout or 0.0))
        return super().getresponse()


class DeadlineTlsConnection(DeadlineConnection, HTTPSConnection):
    """The same over TLS."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = DeadlineConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = DeadlineTlsConnection


POOLS: dict[str, type[HTTPConnectionPool]] = {"http": _Pool, "https": _TlsPool}
"""Pool classes for these connections, by scheme."""
