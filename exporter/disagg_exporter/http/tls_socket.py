"""Sockets for TLS connections, under one deadline including the handshake."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from disagg_exporter.http.deadline_socket import DeadlineSocket

HANDSHAKE = 0x16
"""The first byte of every TLS connection: a handshake record."""


class ForeignCertificateError(OSError):
    """A client with a valid certificate that has none of the required names."""


class DeadlineTlsSocket(DeadlineSocket, ssl.SSLSocket):  # type: ignore[misc] # names its buffers oddly
    """A TLS socket on which everything after `limit()` shares one deadline."""


def wrap(context: ssl.SSLContext, client: DeadlineSocket) -> DeadlineTlsSocket:
    """Wrap a connection that was just accepted; `greet` does the handshake."""
    context.sslsocket_class = DeadlineTlsSocket
    wrapped = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
    assert isinstance(wrapped, DeadlineTlsSocket)
    return wrapped


def speaks_tls(client: DeadlineSocket) -> bool:
    """Return whether the client begins with a TLS handshake; OSError if it sends nothing."""
    first = bytearray(1)
    return not client.recv_into(first, 1, socket.MSG_PEEK) or first[0] == HANDSHAKE


def greet(client: DeadlineTlsSocket, names: frozenset[str]) -> None:
    """Do the handshake; with `names`, the client's certificate must have one of them.

    Raises:
        ForeignCertificateError: The certificate has none of the names.
        OSError: The handshake failed: another protocol, a timeout, no certificate.
    """
    client.check_deadline()
    client.do_handshake()
    found = frozenset(certificate_names(client.getpeercert() or {}))
    if names and not names & found:
        raise ForeignCertificateError(
            f"its certificate is for {', '.join(sorted(found)) or 'no name'}"
        )


def plain_name(text: str) -> str:
    """Return a name in the form for comparison: an IP address in its shortest spelling."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def certificate_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a certificate's subject alternative names, as `plain_name` writes them."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "email", "URI"):
            yield str(name)
        elif kind == "IP Address":
            # OpenSSL ends an address with a line feed in some versions.
            yield plain_name(str(name).strip())
