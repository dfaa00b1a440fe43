"""Either end of a TLS connection, under one deadline from the handshake on."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from disagg_exporter.http.deadline_socket import DeadlineSocket

HANDSHAKE = 0x16
"""The first byte of every TLS connection: a record of the handshake."""


class StrangerError(OSError):
    """A client with a good certificate that is not meant for us."""


class DeadlineTlsSocket(DeadlineSocket, ssl.SSLSocket):  # type: ignore[misc] # names its buffers oddly
    """A TLS socket on which everything from `limit()` on shares one deadline."""


def wrap(context: ssl.SSLContext, client: DeadlineSocket) -> DeadlineTlsSocket:
    """Take over a connection that was just accepted; the handshake is still to be done."""
    context.sslsocket_class = DeadlineTlsSocket
    wrapped = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
    assert isinstance(wrapped, DeadlineTlsSocket)
    return wrapped


def speaks_tls(client: DeadlineSocket) -> bool:
    """Whether the client began with a handshake; raises OSError where it begins nothing."""
    first = bytearray(1)
    return not client.recv_into(first, 1, socket.MSG_PEEK) or first[0] == HANDSHAKE


def greet(client: DeadlineTlsSocket, names: frozenset[str]) -> None:
    """Shake hands; with `names`, only with who has a certificate for one of them.

    Raises:
        StrangerError: The certificate is for none of the names.
        OSError: There were no hands to shake: another protocol, no time, no certificate.
    """
    client.check_deadline()
    client.do_handshake()
    found = frozenset(certificate_names(client.getpeercert() or {}))
    if names and not names & found:
        raise StrangerError(f"its certificate is for {', '.join(sorted(found)) or 'nobody'}")


def plain_name(text: str) -> str:
    """A name as it is compared: an IP address in its one shortest spelling."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def certificate_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The subject alternative names of a certificate, as `plain_name` writes them."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "email", "URI"):
            yield str(name)
        elif kind == "IP Address":
            # OpenSSL ends an address with a line feed in some versions.
            yield plain_name(str(name).strip())
