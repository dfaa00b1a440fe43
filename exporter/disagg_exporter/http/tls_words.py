"""How a server that speaks TLS was verified, and what can be wrong; loads no `ssl` itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from disagg_exporter.errors import DisaggError


class Verified(StrEnum):
    """How a server was known to be the one that was meant."""

    CA = "ca"
    PINNED = "pinned"
    INSECURE = "insecure"


class TlsFault(StrEnum):
    """Why no page came, where TLS is the reason."""

    EXPIRED = "certificate_expired"
    UNTRUSTED = "certificate_untrusted"
    OTHER_NAME = "certificate_of_another_name"
    NOT_PINNED = "certificate_not_of_its_file"
    WANTS_OURS = "client_certificate_wanted"
    NO_TLS = "plain_server"
    TLS_WANTED = "tls_server"
    HUNG_UP = "closed_unanswered"
    NO_TRUST = "nobody_trusted"
    UNREADABLE = "trust_unreadable"
    FAILED = "handshake_failed"


SPEAKING_FAULTS = frozenset(TlsFault) - {
    TlsFault.HUNG_UP,
    TlsFault.NO_TRUST,
    TlsFault.UNREADABLE,
    TlsFault.FAILED,
}
"""Those that only a server can cause which is there and works."""

TLS_FAULT_TEXTS = {
    TlsFault.EXPIRED: "its certificate has expired",
    TlsFault.UNTRUSTED: "its certificate is signed by no authority that we trust",
    TlsFault.OTHER_NAME: "its certificate is for another name",
    TlsFault.NOT_PINNED: "its certificate is not the one in the file that it was started with",
    TlsFault.WANTS_OURS: "it wants a certificate of ours that it trusts",
    TlsFault.NO_TLS: "it speaks no TLS",
    TlsFault.TLS_WANTED: "it speaks TLS and was asked in plain HTTP",
    TlsFault.HUNG_UP: "it closed the connection without an answer",
    TlsFault.NO_TRUST: "it speaks TLS, and nothing says whom to trust",
    TlsFault.UNREADABLE: "what it is to be known by cannot be read",
    TlsFault.FAILED: "the TLS handshake failed",
}
"""Each in one line without values."""


class TlsError(DisaggError):
    """TLS with a server does not come about, or no longer.

    Args:
        fault: Why.
        detail: What OpenSSL or the system says of it.
    """

    def __init__(self, fault: TlsFault, detail: str = "") -> None:
        text = TLS_FAULT_TEXTS[fault]
        super().__init__(f"{text} ({detail})" if detail else text, cause=text)
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
