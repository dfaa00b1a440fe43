"""Whose socket it is that listens on a port."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from disagg_cluster import procfs

_LISTEN = "0A"


class Owner(StrEnum):
    """Who listens: the asked processes, somebody else too, nobody seen, or it cannot be told."""

    OURS = "ours"
    OTHER = "other"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


def listening_inodes(host: str, port: int, net: Path = Path("/proc/net")) -> frozenset[int]:
    """The sockets that may be given a connection to `host`:`port`, by their inodes.

    Several are possible (SO_REUSEPORT, or one on all addresses beside one on `host`).

    Args:
        host: An IP address.
        port: TCP port.
        net: Where the kernel's tables of sockets are.
    """
    wanted = _plain(ip_address(host))
    return frozenset(
        inode
        for table in ("tcp", "tcp6")
        for address, listening, inode in _listeners(net / table)
        if listening == port and (address == wanted or address.is_unspecified)
    )


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


def _listeners(table: Path) -> Iterator[tuple[IPv4Address | IPv6Address, int, int]]:
    try:
        lines = table.open(encoding="ascii")
    except FileNotFoundError:  # a host without IPv6
        return
    with lines:
        next(lines, None)
        for line in lines:
            fields = line.split()
            if fields[3] != _LISTEN:
                # The kernel lists listeners first; a busy host has 100,000 connections behind.
                return
            address, _, port = fields[1].partition(":")
            yield _address(address), int(port, 16), int(fields[9])


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address as the kernel prints it: words of 32 bits in the byte order of the machine."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return _plain(ip_address(socket.inet_ntop(family, raw)))


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
