"""HTTP requests of commands: where to send them, with which credentials, and why they failed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from disagg_cluster.prometheus.credentials import Credentials
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    import ssl

MAX_PAGE_BYTES = 8 * 1024 * 1024
# Pauses before further attempts: short, as this node's daemon may not run.
_PAUSES_SECONDS = (0.1, 0.2)
# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_EXPIRED = 10
_OTHER_NAME = (62, 64)
# Alerts of a server that requires a client certificate.
_WANTS_CLIENT_CERTIFICATE = (
    *("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE"),
)
CLIENT_CERTIFICATE_HINT = (
    "a certificate of ours that it trusts: `tls_config: cert_file: key_file:` "
    "in the file of --http-config names one"
)


class UnansweredError(DisaggError):
    """Nothing listens there, or no complete answer arrived in time."""


class RefusedError(DisaggError):
    """A server answers without a page; the text gives the reason and a remedy."""


class TransportError(DisaggError):
    """No HTTP response; the text gives the reason, without the address.

    Args:
        text: The reason.
        answered: Whether a server is there: it responds otherwise, or TLS with it fails.
        transient: Whether the next attempt may succeed.
    """

    def __init__(self, text: str, *, answered: bool = False, transient: bool = False) -> None:
        super().__init__(text)
        self.answered = answered
        self.transient = transient


@dataclass(frozen=True, slots=True)
class Target:
    """The root URL of a server, and the credentials for it.

    `pinned` is the server's own certificate in PEM, where a file of this node contains it, and
    `pinned_by` that file.
    """

    url: str
    credentials: Credentials = field(default_factory=Credentials)
    pinned: bytes = b""
    pinned_by: str = ""


def is_address(text: str) -> bool:
    """Return whether a text is the root URL of an HTTP server; credentials belong elsewhere."""
    try:
        parts = urlsplit(text)
        there = bool(parts.hostname) and parts.port != 0 and " " not in parts.netloc
    except ValueError:  # brackets, or a port, that are invalid
        return False
    is_http = text.startswith(("http://", "https://"))
    return is_http and there and text.isprintable()


def fetch(target: Target, path: str, deadline_seconds: float) -> bytes:
    """Return the body of a metrics page; redirects are not followed.

    Resolving a host *name* has the resolver's own timeout, and connecting to each of its addresses
    may take the deadline.

    Raises:
        UnansweredError: There is no answer.
        RefusedError: The answer is no page, or TLS fails.
        ConfigError: A file that the credentials name cannot be used.
    """
    # Takes 0.1 s, paid only by commands that make requests.
    import ssl

    from disagg_cluster.prometheus.http_session import HttpSession

    url, credentials = f"{target.url}{path}", target.credentials
    # Without TLS nothing is verified, so the authorities, which take 30 ms, are not loaded.
    is_encrypted = url.startswith("https:")
    tls = (
        credentials.context(target.pinned)
        if is_encrypted
        else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    headers = {"Accept": "text/plain;version=0.0.4"}
    if credentials.authorization:
        headers["Authorization"] = credentials.authorization
    try:
        session = HttpSession(
            headers,
            tls,
            server_name=credentials.tls.server_name or "",
            pinned=target.pinned,
            pinned_by=target.pinned_by,
            pauses_seconds=_PAUSES_SECONDS,
        )
        with closing(session):
            response = session.get(url, deadline_seconds, MAX_PAGE_BYTES)
    except TransportError as error:
        kind = RefusedError if error.answered else UnansweredError
        raise kind(f"{url}: {error}") from None
    if response.status != 200:
        why = _why_refused(response.status, urlsplit(url).scheme, credentials)
        raise RefusedError(f"{url}: {why}")
    return response.body


def _why_refused(status: int, scheme: str, credentials: Credentials) -> str:
    if status == 401 and credentials.authorization:
        return f"it rejects the credentials in {credentials.source} (401)"
    if status == 401:
        return (
            "it wants a name and a password (401); "
            "`basic_auth: username: password_file:` in the file of --http-config gives them"
        )
    if status == 400 and scheme == "http":
        return "answers 400 instead of 200; a server that speaks TLS is asked by https://"
    return f"answers {status} instead of 200"


def why_no_tls(error: ssl.SSLError, pinned_by: str = "") -> str:
    """Return why TLS failed, with a remedy; `pinned_by` names the expected certificate."""
    import ssl

    reason = error.reason or "the connection was closed"
    if not isinstance(error, ssl.SSLCertVerificationError):
        if any(alert in reason for alert in _WANTS_CLIENT_CERTIFICATE):
            return f"it wants {CLIENT_CERTIFICATE_HINT} ({reason})"
        return f"TLS does not come about ({reason}); a server without TLS is asked by http://"
    if error.verify_code == _EXPIRED:
        return "its certificate has expired: renew it"
    if error.verify_code in _OTHER_NAME:
        return (
            f"its certificate is for another name ({error.verify_message.rstrip('.')}); "
            "`tls_config: server_name:` in the file of --http-config says which name to expect"
        )
    if pinned_by:
        return not_the_pinned_one(pinned_by)
    return (
        f"its certificate is not trusted ({error.verify_message}); "
        "`tls_config: ca_file:` in the file of --http-config names whom to trust"
    )


def not_the_pinned_one(pinned_by: str) -> str:
    """Return why a server is rejected that presents another certificate than a file contains."""
    return (
        f"its certificate is not the one that {pinned_by} names; a new one counts some seconds "
        "after it was written, and only if it can be used: the daemon's log says so"
    )
