"""Who is at the other end of a local socket, by the kernel's word."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")


def peer_pid(link: socket.socket) -> int:
    """Return the process that connected; 0 if it lives in a pid namespace we cannot see into."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(pid)


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
