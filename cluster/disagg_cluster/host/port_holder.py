"""Finds the process that listens on a port which another one needs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.tcp_listeners import holders, listeners, plain
from disagg_exporter.errors import escaped

_SHOWN_CHARACTERS = 80


def port_holder(
    host: str, port: int, masked: Callable[[Sequence[str]], Sequence[str]]
) -> str | None:
    """Return who listens on the port of a worker; None if no one does, or it is not known.

    Args:
        host: An IP address.
        port: TCP port; no process holds port 0.
        masked: Hides the secrets in a command line: the answer is shown on the page.
    """
    try:
        inodes = _in_the_way(host, port) if port else frozenset()
    except OSError:
        return None
    if not inodes:
        return None
    return f"another process listens on port {port}: {_named(inodes, masked)}"


def _in_the_way(host: str, port: int) -> frozenset[int]:
    """Return the inodes of the sockets that keep others from listening at `host`:`port`.

    A worker may want to listen on all addresses. Whether a socket on all of IPv6 leaves IPv4 free
    has to be tried: no table shows it.
    """
    wanted = plain(host)
    found = {inode: a for a, inode in listeners(port) if a == wanted or a.is_unspecified}
    if wanted.version == 6 or any(address.version == 4 for address in found.values()):
        return frozenset(found)
    return frozenset() if found and _is_free(host, port) else frozenset(found)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def _named(inodes: frozenset[int], masked: Callable[[Sequence[str]], Sequence[str]]) -> str:
    for pid in holders(inodes, procfs.pids()):
        words = " ".join(masked(procfs.command_line(pid))).split()
        command = escaped(" ".join(words))[:_SHOWN_CHARACTERS]
        return f"pid {pid} ({command or 'without a command line'})"
    return "of another user or container, which we may not look into"
