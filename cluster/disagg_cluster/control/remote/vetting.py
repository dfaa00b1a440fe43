"""Who has connected: by the kernel's word, or by a TLS handshake; and who may not come in."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from disagg_cluster.control.messages import Caller, local_caller
from disagg_cluster.control.refusal import RefusalReason
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.server.authentication import Access
from disagg_exporter.http.tls_socket import certificate_names
from disagg_exporter.steps.local_sockets import peer_credentials

PATIENCE_SECONDS = 5.0
"""How long a handshake may take, and then how long until a token was shown."""

_MOST_NAME = 80


class TurnedAwayError(DisaggError):
    """Who knocks is not let in, for a reason."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Guest:
    """Who was let in, to say what over which streams; `enough`, without showing anything more."""

    caller: Caller
    streams: Streams
    enough: bool = True


Vet = Callable[[socket.socket], Awaitable[Guest]]
"""Finds out who has connected; raises TurnedAwayError if they may not come in."""


def local_vet(users: Collection[int] | None = None) -> Vet:
    """Lets in root and this process's user, by the kernel's word."""
    allowed = frozenset((0, os.geteuid()) if users is None else users)

    async def vet(link: socket.socket) -> Guest:
        pid, uid = peer_credentials(link)
        if uid not in allowed:
            why = f"uid {uid} (pid {pid}) is neither root nor this daemon's user"
            raise TurnedAwayError(RefusalReason.NOT_ALLOWED, why)
        return Guest(local_caller(uid, pid), await _streams(link))

    return vet


def weakness(access: Access, *, has_token: bool) -> str:
    """Why these conditions do not protect the control of a node; empty if they do."""
    if access.tls is None:
        return "it asks for no TLS"
    if access.tls.verify_mode is not ssl.CERT_REQUIRED and not has_token:
        return "it asks for no client certificates, and there is no token_file"
    return ""


def tls_vet(
    access: Callable[[], Access], *, has_token: bool, seconds: float = PATIENCE_SECONDS
) -> Vet:
    """Lets in who completes a TLS handshake; with a token they still have to show it.

    Args:
        access: The conditions now, of a web-config file.
        has_token: Whether a token is asked for, too.
        seconds: What a handshake may take.
    """

    async def vet(link: socket.socket) -> Guest:
        host, now = link.getpeername()[0], access()
        if why := weakness(now, has_token=has_token):
            raise TurnedAwayError(RefusalReason.TLS, f"the web_config protects nothing: {why}")
        assert now.tls is not None
        now.tls.set_alpn_protocols(["h2"])
        try:
            streams = await _streams(link, ssl=now.tls, ssl_handshake_timeout=seconds)
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "no TLS"
            raise TurnedAwayError(RefusalReason.TLS, f"TLS: {why}") from None
        except (ConnectionAbortedError, TimeoutError):
            why = "it took too long to shake hands"
            raise TurnedAwayError(RefusalReason.TOO_SLOW, why) from None
        try:
            caller = _certified(streams[1].get_extra_info("ssl_object"), now.client_names, host)
        except TurnedAwayError:
            streams[1].transport.abort()
            raise
        return Guest(caller, streams, enough=not has_token)

    return vet


def _certified(tls: ssl.SSLObject, allowed: frozenset[str], host: str) -> Caller:
    """Who has shaken hands; raises TurnedAwayError if it is none of those who are allowed."""
    if tls.selected_alpn_protocol() != "h2":
        raise TurnedAwayError(RefusalReason.TLS, "TLS: it speaks no HTTP/2 (ALPN h2)")
    certificate = tls.getpeercert() or {}
    names = sorted(certificate_names(certificate)) or _common_names(certificate)
    if allowed and not allowed.intersection(names):
        why = f"its certificate is for {_shown(names) or 'nobody'}"
        raise TurnedAwayError(RefusalReason.TLS, why)
    return Caller(f"{f'the certificate of {_shown(names)}' if names else 'a client'} at {host}")


async def _streams(link: socket.socket, **tls: Any) -> Streams:
    """Take over a connection; with `tls`, after a handshake."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, link, **tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _common_names(certificate: Mapping[str, Any]) -> list[str]:
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    return [str(value) for key, value in subject if key == "commonName"]


def _shown(names: Collection[str]) -> str:
    """Names that somebody else has chosen, fit for a line of the log."""
    told = ", ".join(names)
    return "".join(char if char.isprintable() else "?" for char in told)[:_MOST_NAME]
