"""Who listens on a worker's port before the worker is started."""

from __future__ import annotations

from disagg_cluster import procfs
from disagg_cluster.listeners import listening_inodes, socket_inodes

_SHOWN_CHARACTERS = 80


def port_holder(host: str, port: int) -> str | None:
    """Say who listens where a worker is to; None if nobody does, or it cannot be seen whether.

    Args:
        host: An IP address.
        port: TCP port; 0 is nobody's.
    """
    try:
        inodes = listening_inodes(host, port) if port else frozenset()
    except OSError:
        return None
    return f"another process listens on port {port}: {_named(inodes)}" if inodes else None


def _named(inodes: frozenset[int]) -> str:
    for pid in procfs.pids():
        try:
            holds = not inodes.isdisjoint(socket_inodes(pid))
        except PermissionError:
            continue
        if holds:
            command = " ".join(" ".join(procfs.command_line(pid)).split())
            return f"pid {pid} ({command[:_SHOWN_CHARACTERS] or 'without a command line'})"
    return "of another user or container, which we may not look into"
