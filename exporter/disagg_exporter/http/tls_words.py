"""How a server that speaks TLS was verified, and what can be wrong; loads no `ssl` itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from disagg_exporter.errors import DisaggError


class Verified(StrEnum):
    """How a server was known to be the one that was meant."""

    CA = "ca"
    PINNED = "pinned"
    INSECURE = "insecure"


class TlsFault(StrEnum):
    """Why no page came, where TLS is the reason; `text` says it in one line without values."""

    text: str

    EXPIRED = "certificate_expired", "its certificate has expired"
    UNTRUSTED = "certificate_untrusted", "its certificate is signed by no authority that we trust"
    OTHER_NAME = "certificate_of_another_name", "its certificate is for another name"
    NOT_PINNED = (
        "certificate_not_of_its_file",
        "its certificate is not the one in the file that it was started with",
    )
    WANTS_OURS = "client_certificate_wanted", "it wants a certificate of ours that it trusts"
    NO_TLS = "plain_server", "it speaks no TLS"
    TLS_WANTED = "tls_server", "it speaks TLS and was asked in plain HTTP"
    HUNG_UP = "closed_unanswered", "it closed the connection without an answer"
    NO_TRUST = "nobody_trusted", "it speaks TLS, and nothing says whom to trust"
    UNREADABLE = "trust_unreadable", "what it is to be known by cannot be read"
    FAILED = "handshake_failed", "the TLS handshake failed"

    def __new__(cls, value: str, text: str = "") -> Self:
        """Make a member of its word and its text."""
        fault = str.__new__(cls, value)
        fault._value_, fault.text = value, text
        return fault


SPEAKING_FAULTS = frozenset(TlsFault) - {
    TlsFault.HUNG_UP,
    TlsFault.NO_TRUST,
    TlsFault.UNREADABLE,
    TlsFault.FAILED,
}
"""Those that only a server can cause which is there and works."""


class TlsError(DisaggError):
    """TLS with a server does not come about, or no longer.

    Args:
        fault: Why.
        detail: What OpenSSL or the system says of it.
    """

    def __init__(self, fault: TlsFault, detail: str = "") -> None:
        super().__init__(f"{fault.text} ({detail})" if detail else fault.text, cause=fault.text)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Trust:
    """By what a server is known: the first that is given of these, in this order.

    `ca_file` has the certificates of those who may have signed its own, which must be for
    `server_name`, else for the host that it is asked at. `pinned` are the server's own
    certificates in PEM, of which it must show one, whatever host it is asked at. With `insecure`
    any server is believed. `cert_file` and `key_file` are our own, for a server that asks for it.
    """

    ca_file: Path | None = None
    pinned: tuple[bytes, ...] = field(default=(), repr=False)
    insecure: bool = False
    server_name: str = ""
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def verified(self) -> Verified:
        """How a server is verified by it.

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
