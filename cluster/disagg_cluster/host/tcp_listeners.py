"""Which sockets listen on a TCP port, on which addresses, and which processes hold them.

It uses netlink (sock_diag), because /proc/net/tcp walks every connection of the host: 2 ms per scan
on an idle one against 0.05 ms. The file is read where netlink gives no answer; both have the same
content.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from disagg_cluster.host.processes import procfs

Listener = tuple[IPv4Address | IPv6Address, int]
"""An address and the inode of a socket that listens on it."""

_SOCK_DIAG = 4
_BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 20, 0x301, 2, 3
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states; then the socket's id
_SOCKET_ID = struct.Struct("!HH16s28x")  # our port, their port, our address, and unused bytes
_ANSWER = struct.Struct("=4x48s16xI")  # the socket's id; its inode
_STATE_LISTEN = 10
_PROC_LISTEN = "0A"
_IPV6 = 6


def listeners(port: int) -> tuple[Listener, ...]:
    """Return all sockets of this network namespace that listen on a port, IPv4 and IPv6.

    Raises:
        OSError: Neither netlink nor /proc answers.
    """
    try:
        return tuple(ask_kernel(port))
    except OSError:
        return tuple(read_files(port))


def ask_kernel(port: int, protocol: int = socket.IPPROTO_TCP) -> Iterator[Listener]:
    """Yield the listeners by netlink.

    Args:
        port: Their port.
        protocol: TCP; an argument so that a refusal can be tested.

    Raises:
        OSError: This kernel, or this container, does not answer such requests.
    """
    for listening, family, raw, inode in _dump(port, protocol):
        if listening == port:
            yield _address(family, raw), inode


def read_files(port: int, net: Path = Path("/proc/net")) -> Iterator[Listener]:
    """Yield the listeners by the tables in /proc."""
    for listening, address, inode in _rows(net):
        if listening == port:
            yield address, inode


def all_listeners(net: Path | None = None) -> dict[int, tuple[IPv4Address | IPv6Address, int]]:
    """Return the address and port of every listening TCP socket, by its inode.

    Args:
        net: The tables of another network namespace (`/proc/<pid>/net`); ours if None.

    Raises:
        OSError: Neither answers.
    """
    if net is None:
        try:
            return {inode: (_address(family, raw), port) for port, family, raw, inode in _dump(0)}
        except OSError:
            net = Path("/proc/net")
    return {inode: (address, port) for port, address, inode in _rows(net)}


def inodes_by_port() -> dict[int, frozenset[int]]:
    """Return the listening TCP sockets of this network namespace, by port.

    Raises:
        OSError: Neither netlink nor /proc answers.
    """
    found: defaultdict[int, set[int]] = defaultdict(set)
    try:
        for port, _, _, inode in _dump(0):
            found[port].add(inode)
    except OSError:
        for port, _, inode in _rows(Path("/proc/net")):
            found[port].add(inode)
    return {port: frozenset(inodes) for port, inodes in found.items()}


def _dump(
    port: int, protocol: int = socket.IPPROTO_TCP
) -> Iterator[tuple[int, socket.AddressFamily, bytes, int]]:
    """Yield port, family, address and inode by netlink, of one port, or of all if it is 0."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = _REQUEST.pack(family, protocol, 0, 1 << _STATE_LISTEN)
            asked += _SOCKET_ID.pack(port, 0, b"")
            head = _HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST_DUMP, 1, 0)
            netlink.send(head + asked)
            for answer in _answers(netlink):
                socket_id, inode = _ANSWER.unpack_from(answer)
                listening, _, raw = _SOCKET_ID.unpack(socket_id)
                yield listening, family, raw, inode


def _rows(net: Path) -> Iterator[tuple[int, IPv4Address | IPv6Address, int]]:
    """Yield port, address and inode by the tables in /proc."""
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = (net / table).open(encoding="ascii")
        except FileNotFoundError:  # a host without IPv6
            continue
        with lines:
            next(lines, None)
            for line in lines:
                fields = line.split()
                if fields[3] != _PROC_LISTEN:
                    break  # listeners come first, and 100,000 connections may follow
                address, _, listening = fields[1].partition(":")
                yield int(listening, 16), _address(family, _from_hex_words(address)), int(fields[9])


def _answers(netlink: socket.socket) -> Iterator[bytes]:
    """Yield what follows the headers of the messages of one dump."""
    while True:
        received = netlink.recv(65536)
        while received:
            length, kind = _HEADER.unpack_from(received)[:2]
            body, received = received[_HEADER.size : length], received[(length + 3) & ~3 :]
            if kind not in (_DONE, _ERROR):
                yield body
                continue
            errno = -int.from_bytes(body[:4], sys.byteorder, signed=True)
            if errno > 0:  # a refused dump may also come as one that is done, with an error
                raise OSError(errno, os.strerror(errno))
            return


def _from_hex_words(text: str) -> bytes:
    """Return an address as /proc prints it: words of 32 bits in the machine's byte order."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "big":
        return raw
    return b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))


def _address(family: int, raw: bytes) -> IPv4Address | IPv6Address:
    """Return an address, as IPv4 where it is an IPv4-mapped one."""
    if family == socket.AF_INET:
        return IPv4Address(raw[:4])
    address = IPv6Address(raw)
    return address.ipv4_mapped or address


def plain(text: str) -> IPv4Address | IPv6Address:
    """Return the address that a text names, in the same form as those of `listeners`."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


class Owner(StrEnum):
    """Who listens: only the given processes, also others, no visible process, or unknown."""

    OURS = "ours"
    OTHER = "other"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


def listening_inodes(
    host: str, port: int, table: Callable[[int], Iterable[Listener]] = listeners
) -> frozenset[int]:
    """Return the sockets that may receive a connection to `host`:`port`, by their inodes.

    Several are possible (SO_REUSEPORT). A socket on all IPv6 addresses receives IPv4 connections
    only if none listens there by IPv4, and an IPv4 listener receives no IPv6 connections.

    Args:
        host: An IP address.
        port: TCP port.
        table: Returns the listeners of a port.
    """
    wanted = plain(host)
    fitting = [each for each in table(port) if each[0] == wanted or each[0].is_unspecified]
    same = frozenset(inode for address, inode in fitting if address.version == wanted.version)
    if same or wanted.version == _IPV6:
        return same
    return frozenset(inode for _, inode in fitting)


def session_members(session: int) -> Iterator[int]:
    """Yield the processes of a session, its leader first, which is usually the listener."""
    yield session
    yield from procfs.session_pids(session)


def socket_inodes(pid: int) -> Iterator[int]:
    """Yield the sockets that a process holds, by their inodes.

    Raises:
        PermissionError: We may not inspect the process.
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


def holders(inodes: frozenset[int], pids: Iterable[int]) -> Iterator[int]:
    """Yield those of some processes that hold one of these sockets, as far as permitted."""
    for pid in pids:
        try:
            holds = not inodes.isdisjoint(socket_inodes(pid))
        except PermissionError:
            continue
        if holds:
            yield pid


def owner_of(
    inodes: frozenset[int],
    pids: Iterable[int],
    sockets_of: Callable[[int], Iterable[int]] = socket_inodes,
) -> Owner:
    """Return whether all those sockets are held by some of those processes."""
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
