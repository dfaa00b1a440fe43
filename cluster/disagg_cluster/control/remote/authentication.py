"""Identifies connections, by peer credentials or TLS handshake, and rejects unauthorized ones."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from disagg_cluster.control.messages import Caller, local_caller
from disagg_cluster.control.refusal import RefusalReason
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.server.authentication import Access
from disagg_exporter.http.tls_socket import certificate_names
from disagg_exporter.steps.local_sockets import peer_credentials

AUTHENTICATION_SECONDS = 5.0
"""Time limit for a handshake, and then for presenting a token."""

_MOST_NAME = 80


class RejectedError(DisaggError):
    """A connection is rejected, for a reason."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """An accepted client and its streams; `enough`: it need not present a token."""

    caller: Caller
    streams: Streams
    enough: bool = True


Authenticate = Callable[[socket.socket], Awaitable[AuthenticatedClient]]
"""Identifies a client; raises RejectedError if it is rejected."""


def local_authentication(users: Collection[int] | None = None) -> Authenticate:
    """Accepts root and this process's user, identified by the kernel."""
    allowed = frozenset((0, os.geteuid()) if users is None else users)

    async def authenticate(link: socket.socket) -> AuthenticatedClient:
        pid, uid = peer_credentials(link)
        if uid not in allowed:
            why = f"uid {uid} (pid {pid}) is neither root nor this daemon's user"
            raise RejectedError(RefusalReason.NOT_ALLOWED, why)
        return AuthenticatedClient(local_caller(uid, pid), await _streams(link))

    return authenticate


def weakness(access: Access, *, has_token: bool) -> str:
    """Why these conditions do not protect the control of a node; empty if they do."""
    if access.tls is None:
        return "it asks for no TLS"
    if access.tls.verify_mode is not ssl.CERT_REQUIRED and not has_token:
        return "it asks for no client certificates, and there is no token_file"
    return ""


def tls_authentication(access: Callable[[], Access], *, has_token: bool) -> Authenticate:
    """Accepts clients that complete a TLS handshake; a required token is checked later.

    Args:
        access: Returns the current conditions of a web-config file.
        has_token: Whether a token is required as well.
    """

    async def authenticate(link: socket.socket) -> AuthenticatedClient:
        host, now = link.getpeername()[0], access()
        if why := weakness(now, has_token=has_token):
            raise RejectedError(RefusalReason.TLS, f"the web_config protects nothing: {why}")
        assert now.tls is not None
        now.tls.set_alpn_protocols(["h2"])
        try:
            limit = AUTHENTICATION_SECONDS
            streams = await _streams(link, ssl=now.tls, ssl_handshake_timeout=limit)
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "no TLS"
            raise RejectedError(RefusalReason.TLS, f"TLS: {why}") from None
        except (ConnectionAbortedError, TimeoutError):
            why = "the TLS handshake took too long"
            raise RejectedError(RefusalReason.TOO_SLOW, why) from None
        try:
            caller = _certified(streams[1].get_extra_info("ssl_object"), now.client_names, host)
        except RejectedError:
            streams[1].transport.abort()
            raise
        return AuthenticatedClient(caller, streams, enough=not has_token)

    return authenticate


def _certified(tls: ssl.SSLObject, allowed: frozenset[str], host: str) -> Caller:
    """The client of a TLS connection; raises RejectedError if its certificate is not allowed."""
    if tls.selected_alpn_protocol() != "h2":
        raise RejectedError(RefusalReason.TLS, "TLS: it does not offer HTTP/2 (ALPN h2)")
    certificate = tls.getpeercert() or {}
    names = sorted(certificate_names(certificate)) or _common_names(certificate)
    if allowed and not allowed.intersection(names):
        why = f"its certificate is for {_shown(names) or 'no name'}"
        raise RejectedError(RefusalReason.TLS, why)
    return Caller(f"{f'the certificate of {_shown(names)}' if names else 'a client'} at {host}")


async def _streams(link: socket.socket, **tls: Any) -> Streams:
    """Take over a connection; with `tls`, after a handshake."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, link, **tls)
    except BaseException as error:
        # These frames and the error refer to each other: together they would hold the memory of the
        # handshake until the next full collection, and a flood makes thousands of them.
        traceback.clear_frames(error.__traceback__)
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _common_names(certificate: Mapping[str, Any]) -> list[str]:
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    return [str(value) for key, value in subject if key == "commonName"]


def _shown(names: Collection[str]) -> str:
    """Names chosen by the client, made safe for a log line."""
    text = ", ".join(names)
    return "".join(char if char.isprintable() else "?" for char in text)[:_MOST_NAME]
