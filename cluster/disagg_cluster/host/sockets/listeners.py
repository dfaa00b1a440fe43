"""Whose socket it is that listens on a port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.sockets import tcp_tables
from disagg_cluster.host.sockets.tcp_tables import Listener

_IPV6 = 6


class Owner(StrEnum):
    """Who listens: the asked processes, somebody else too, nobody seen, or it cannot be told."""

    OURS = "ours"
    OTHER = "other"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


def listening_inodes(
    host: str, port: int, table: Callable[[int], Iterable[Listener]] = tcp_tables.listeners
) -> frozenset[int]:
    """The sockets that may be given a connection to `host`:`port`, by their inodes.

    Several are possible (SO_REUSEPORT). One on all addresses of IPv6 gets connections of IPv4 only
    where nobody listens there by IPv4, and none of IPv6 goes to a listener of IPv4.

    Args:
        host: An IP address.
        port: TCP port.
        table: Who listens on a port at all.
    """
    wanted = tcp_tables.plain(host)
    fitting = [each for each in table(port) if each[0] == wanted or each[0].is_unspecified]
    same = frozenset(inode for address, inode in fitting if address.version == wanted.version)
    if same or wanted.version == _IPV6:
        return same
    return frozenset(inode for _, inode in fitting)


def session_members(session: int) -> Iterator[int]:
    """The processes of a session, its leader first: it mostly is the one that listens."""
    yield session
    yield from procfs.session_pids(session)


def socket_inodes(pid: int) -> Iterator[int]:
    """The sockets that a process holds, by their inodes.

    Raises:
        PermissionError: The process is not ours to look into.
    """
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - hundreds, each second
    except (FileNotFoundError, ProcessLookupError):
        return
    for descriptor in descriptors:
        try:
            name = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 - as above
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith("socket:["):
            yield int(name[8:-1])


def owner_of(
    inodes: frozenset[int],
    pids: Iterable[int],
    sockets_of: Callable[[int], Iterable[int]] = socket_inodes,
) -> Owner:
    """Whether all those sockets are held by some of those processes."""
    if not inodes:
        return Owner.NOBODY
    missing = set(inodes)
    unreadable = False
    for pid in pids:
        try:
            for inode in sockets_of(pid):
                missing.discard(inode)
                if not missing:
                    return Owner.OURS
        except PermissionError:
            unreadable = True
    return Owner.UNKNOWN if unreadable else Owner.OTHER
