"""Fetches a page that may be behind TLS or a password, within a deadline that covers everything."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from disagg_cluster.prometheus.http_config_file import Pass
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.fetch import request_for
from disagg_exporter.http.client.response_parser import Answer, AnswerError
from disagg_exporter.http.deadline_socket import Limited, LimitedSocket

if TYPE_CHECKING:
    import ssl

MAX_PAGE_BYTES = 8 * 1024 * 1024
_READ_BYTES = 64 * 1024
_PORTS = {"http": 80, "https": 443}
# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_EXPIRED = 10
_OTHER_NAME = (62, 64)
# Alerts of a server that wants a certificate of its client's.
_WANTS_OURS = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")
_OURS = (
    "a certificate of ours that it trusts: `tls_config: cert_file: key_file:` "
    "in the file of --http-config names one"
)


class NobodyAnswersError(DisaggError):
    """Nothing listens there, or no whole answer came in time."""


class RefusedError(DisaggError):
    """Somebody answers and gives no page; the text says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where a page is and what opens it.

    `pinned` is the server's own certificate in PEM, where a file of this node tells it, and
    `pinned_by` that file.
    """

    url: str
    key: Pass = field(default_factory=Pass)
    pinned: bytes = b""
    pinned_by: str = ""


def fetch(door: Door, path: str, deadline_seconds: float) -> bytes:
    """Return the body of a page; redirects are not followed, proxies not asked.

    The look-up of a host *name* is left to the resolver's own patience, and each of its addresses
    may take the deadline to be reached.

    Raises:
        NobodyAnswersError: Nobody does.
        RefusedError: The answer is no page, or TLS does not come about.
        ConfigError: A file that the pass names cannot be used.
    """
    url, parts = f"{door.url}{path}", urlsplit(door.url)
    until_seconds = time.monotonic() + deadline_seconds
    where = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
    try:
        connected = socket.create_connection(where, deadline_seconds)
        with LimitedSocket(fileno=connected.detach()) as plain:
            plain.limit(until_seconds - time.monotonic())
            if parts.scheme == "http":
                return _get(plain, url, door.key)
            return _get_encrypted(plain, url, door, until_seconds)
    except TimeoutError:
        raise NobodyAnswersError(f"{url}: no whole answer in {deadline_seconds:g} s") from None
    except AnswerError as error:
        raise RefusedError(f"{url}: {error}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or f"{where[0]!a} is no host"
        raise NobodyAnswersError(f"{url}: {why}") from None


def _get_encrypted(plain: LimitedSocket, url: str, door: Door, until_seconds: float) -> bytes:
    import ssl

    from disagg_exporter.http.tls_socket import LimitedTlsSocket

    context = door.key.context(door.pinned)
    context.sslsocket_class = LimitedTlsSocket
    name = door.key.tls.server_name or urlsplit(url).hostname
    try:
        with context.wrap_socket(
            plain, server_hostname=name, do_handshake_on_connect=False
        ) as wrapped:
            assert isinstance(wrapped, LimitedTlsSocket)
            wrapped.limit(until_seconds - time.monotonic())
            try:
                wrapped.brace()
                wrapped.do_handshake()
            except ssl.SSLError as error:
                raise RefusedError(f"{url}: {why_no_tls(error, door.pinned_by)}") from None
            # OpenSSL is content with what the pinned one has signed.
            found = wrapped.getpeercert(binary_form=True)
            if door.pinned and found != ssl.PEM_cert_to_DER_cert(door.pinned.decode("ascii")):
                raise RefusedError(f"{url}: {_another(door.pinned_by)}")
            return _get(wrapped, url, door.key)
    except TimeoutError:
        raise
    except OSError as error:
        # A client that shows no certificate is hung up on; why may get lost on the way.
        why = getattr(error, "reason", None) or error.strerror or "no reason was given"
        told = f"it hung up ({why}), as a server without TLS does, or one that wants {_OURS}"
        raise RefusedError(f"{url}: {told}") from None


def _get(server: Limited, url: str, key: Pass) -> bytes:
    server.sendall(request_for(url, key.authorization))
    answer, buffer = Answer(MAX_PAGE_BYTES), bytearray(_READ_BYTES)
    while count := server.recv_into(buffer):
        if answer.take(bytes(buffer[:count])):
            break
    else:
        if not answer.begun:
            raise ConnectionResetError(errno.ECONNRESET, "closed without an answer")
        answer.end()
    if answer.status != 200:
        raise RefusedError(f"{url}: {_why_refused(answer.status, urlsplit(url).scheme, key)}")
    return answer.body


def _why_refused(status: int, scheme: str, key: Pass) -> str:
    if status == 401 and key.authorization:
        return f"it does not let in who {key.source} says we are (401)"
    if status == 401:
        return (
            "it wants a name and a password (401); "
            "`basic_auth: username: password_file:` in the file of --http-config gives them"
        )
    if status == 400 and scheme == "http":
        return "answers 400 instead of 200; a server that speaks TLS is asked by https://"
    return f"answers {status} instead of 200"


def why_no_tls(error: ssl.SSLError, pinned_by: str = "") -> str:
    """Why TLS did not come about, and the way out; `pinned_by` names the certificate we expect."""
    import ssl

    reason = error.reason or "the connection was closed"
    if not isinstance(error, ssl.SSLCertVerificationError):
        if any(word in reason for word in _WANTS_OURS):
            return f"it wants {_OURS} ({reason})"
        return f"TLS does not come about ({reason}); a server without TLS is asked by http://"
    if error.verify_code == _EXPIRED:
        return "its certificate has expired: renew it"
    if error.verify_code in _OTHER_NAME:
        return (
            f"its certificate is for another name ({error.verify_message.rstrip('.')}); "
            "`tls_config: server_name:` in the file of --http-config says which name to expect"
        )
    if pinned_by:
        return _another(pinned_by)
    return (
        f"its certificate is not trusted ({error.verify_message}); "
        "`tls_config: ca_file:` in the file of --http-config names whom to trust"
    )


def _another(pinned_by: str) -> str:
    return (
        f"its certificate is not the one that {pinned_by} names; a new one counts some seconds "
        "after it was written, and only if it can be used: the daemon's log says so"
    )
