"""How a TLS server is verified, and the possible faults; does not import `ssl`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from disagg_exporter.errors import DisaggError


class Verified(StrEnum):
    """How a server's identity was verified."""

    CA = "ca"
    PINNED = "pinned"
    INSECURE = "insecure"


class TlsFault(StrEnum):
    """Why TLS prevented a fetch; `text` is the reason in one line without values."""

    text: str

    EXPIRED = "certificate_expired", "its certificate has expired"
    UNTRUSTED = "certificate_untrusted", "its certificate is signed by an unknown authority"
    OTHER_NAME = "certificate_of_another_name", "its certificate is for another name"
    NOT_PINNED = (
        "certificate_not_of_its_file",
        "its certificate differs from the one in the file that it was started with",
    )
    WANTS_OURS = "client_certificate_wanted", "it requires a client certificate that it trusts"
    NO_TLS = "plain_server", "it does not use TLS"
    TLS_WANTED = "tls_server", "it uses TLS, but its address begins with http://"
    HUNG_UP = "closed_unanswered", "it closed the connection without an answer"
    NO_TRUST = "nobody_trusted", "it uses TLS, but no CA or certificate is known to verify it with"
    UNREADABLE = "trust_unreadable", "a file needed to verify it, or to identify us, cannot be used"
    FAILED = "handshake_failed", "the TLS handshake failed"

    def __new__(cls, value: str, text: str = "") -> Self:
        """Create a member from its value and text."""
        fault = str.__new__(cls, value)
        fault._value_, fault.text = value, text
        return fault


SPEAKING_FAULTS = frozenset(TlsFault) - {
    TlsFault.HUNG_UP,
    TlsFault.NO_TRUST,
    TlsFault.UNREADABLE,
    TlsFault.FAILED,
}
"""The faults that only a working server can cause."""


class TlsError(DisaggError):
    """TLS with a server failed, at its start or later.

    Args:
        fault: The reason.
        detail: The message of OpenSSL or the system.
    """

    def __init__(self, fault: TlsFault, detail: str = "") -> None:
        super().__init__(f"{fault.text} ({detail})" if detail else fault.text, cause=fault.text)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Trust:
    """How to verify a server: by the first of these that is given, in this order.

    `ca_file` has the certificates of accepted signers; the server's own must be for `server_name`,
    else for the requested host. `pinned` are the server's own certificates in PEM, of which it must
    present one; the requested host does not matter. With `insecure` any server is accepted.
    `cert_file` and `key_file` are our own, for a server that requires them.
    """

    ca_file: Path | None = None
    pinned: tuple[bytes, ...] = field(default=(), repr=False)
    insecure: bool = False
    server_name: str = ""
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def verified(self) -> Verified:
        """How a server is verified.

        Raises:
            TlsError: Nothing is trusted.
        """
        if self.ca_file is not None:
            return Verified.CA
        if self.pinned:
            return Verified.PINNED
        if self.insecure:
            return Verified.INSECURE
        raise TlsError(TlsFault.NO_TRUST)
