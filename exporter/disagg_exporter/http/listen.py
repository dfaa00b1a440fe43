"""The metrics page's listening socket, from the address in a node file or a planner file."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from disagg_exporter.errors import DisaggError

# Connections that the kernel queues; when the queue is full, a client retries only after a second.
_BACKLOG = 1024
NODE_SETTING = "`--port`, or `listen: metrics:` in the node file, if there is one"
"""Where the address of a node's page is set, for people."""

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(DisaggError):
    """The listening socket cannot be opened; the text has the address and the remedy."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host (empty: every address of the machine) and a port (0: any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Read `host:port`, `[v6]:port` or `:port`.

    Raises:
        ListenError: The text is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    sound = colon and port.isascii() and port.isdigit() and int(port) <= 65535
    if not sound or (":" in host and not bracketed) or ("[" in host and not bracketed):
        raise ListenError(
            f"{text!r} is no address to listen on: give HOST:PORT, [IPV6]:PORT or :PORT"
        )
    return ListenAddress(host[1:-1] if bracketed else host, int(port))


def open_listener(address: ListenAddress, setting: str = NODE_SETTING) -> socket.socket:
    """Bind and listen; without a host, on both IPv6 and IPv4 if the machine has both.

    `setting` says for people where the address is set.

    Raises:
        ListenError: The port is taken or not permitted, or the host is not of this machine.
    """
    try:
        if address.host or not socket.has_dualstack_ipv6():
            return _listen(address, dual=False)
        try:
            return _listen(address, dual=True)
        except OSError as error:
            # A kernel may support IPv6 but have it disabled on every interface.
            if error.errno not in _NO_SUCH_ADDRESS:
                raise
            return _listen(address, dual=False)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"cannot listen on {address}: {_way_out(error, address, setting)}"
        ) from error


def _listen(address: ListenAddress, *, dual: bool) -> socket.socket:
    family = socket.AF_INET6 if dual or ":" in address.host else socket.AF_INET
    where = (address.host, address.port)
    return socket.create_server(where, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)


def _way_out(error: OSError | UnicodeError, address: ListenAddress, setting: str) -> str:
    if isinstance(error, UnicodeError):
        return "that is not a host name"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"the port is taken (see `ss -ltnp sport = :{address.port}`); stop what holds it "
                f"or choose another port ({setting})"
            )
        case errno.EACCES:
            return f"not permitted; choose a port from 1024 up ({setting})"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no such address; choose one of its own ({setting})"
        case _:
            return error.strerror or os.strerror(error.errno or 0)
