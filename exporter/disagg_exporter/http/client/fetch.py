"""A request for a page, and its result."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from disagg_exporter.errors import DisaggError
from disagg_exporter.http.tls_words import SPEAKING_FAULTS, TlsError, TlsFault

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

Address = tuple[socket.AddressFamily, Any]
"""Where a server is, as the kernel wants it."""


class EngineUnreachable(DisaggError):  # noqa: N818 the state of an engine, named as we say it
    """No page from an engine; its text is one line that says why.

    Args:
        cause: As `DisaggError` has it.
        tls_fault: Set where TLS is why, or may be.
    """

    def __init__(self, text: str, *, cause: str = "", tls_fault: TlsFault | None = None) -> None:
        super().__init__(text, cause=cause)
        self.tls_fault = tls_fault

    @property
    def speaks(self) -> bool:
        """Whether a server is there that speaks TLS, or was expected to."""
        return self.tls_fault in SPEAKING_FAULTS

    @classmethod
    def by_tls(cls, url: str, error: TlsError) -> EngineUnreachable:
        """No page because TLS with the engine's server does not come about."""
        cause = f"{url}: {error.cause}"
        return cls(f"{url}: {error}", cause=cause, tls_fault=error.fault)


class EngineRefused(EngineUnreachable):
    """A server answers there, but not with the page.

    Args:
        text, cause: As `EngineUnreachable` has them.
        status: That of the answer.
    """

    def __init__(self, text: str, *, cause: str = "", status: int = 0) -> None:
        super().__init__(text, cause=cause)
        self.status = status


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One request.

    `key` says whose it is: one request of each at a time, and its connection is kept for its next.
    `addresses` are those of the server, tried in turn. `deadline_seconds` covers connecting,
    sending and every byte of the answer. `bearer` is a key that the server wants. `tls` is how to
    speak TLS with it; None for a server that is asked in plain HTTP.
    """

    key: str
    url: str
    addresses: tuple[Address, ...]
    deadline_seconds: float
    bearer: str = field(default="", repr=False)
    tls: ClientTls | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The server's name or address."""
        return urlsplit(self.url).hostname or ""

    def encoded(self, *, keep: bool) -> bytes:
        """The request as it is sent; `keep` asks for the connection to be kept after it."""
        parts = urlsplit(self.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        authorization = f"Authorization: Bearer {self.bearer}\r\n" if self.bearer else ""
        # Without `Accept`, client libraries answer OpenMetrics and rename `vllm:x`.
        return (
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            "Accept: text/plain;version=0.0.4\r\nAccept-Encoding: identity\r\n"
            f"{authorization}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        ).encode("latin-1")


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The result of a request: the page, or why there is none.

    That is an `EngineUnreachable`, or else an unforeseen exception.
    """

    request: FetchRequest
    page: bytes | Exception
