"""Who is at the other end of a local socket, by the kernel's word."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Protocol

_CREDENTIALS = struct.Struct("3i")


class PeerLink(Protocol):
    """A connected local socket, or what asyncio shows of one."""

    def fileno(self) -> int:
        """Its descriptor; below 0 once it is closed."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """As that of a socket."""


def peer_pid(link: socket.socket) -> int:
    """Return the process that connected; 0 if it lives in a pid namespace we cannot see into."""
    return peer_credentials(link)[0]


def peer_credentials(link: PeerLink) -> tuple[int, int]:
    """Return the process that connected, as `peer_pid`, and its user id."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(pid), int(uid)


def in_session_of(leader_pid: int, pid: int, proc_root: Path | str = "/proc") -> bool:
    """Say whether `pid` is the session leader `leader_pid` itself or lives in its session.

    A process that is gone, or that the kernel does not show us (pid 0), is in no session.
    """
    if pid <= 0 or leader_pid <= 0:
        return False
    if pid == leader_pid:
        return True
    try:
        line = (Path(proc_root) / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    # pid (name) state ppid pgrp session …; the name may hold anything, brackets too.
    fields = line.rpartition(")")[2].split()
    return len(fields) > 3 and fields[3] == str(leader_pid)
