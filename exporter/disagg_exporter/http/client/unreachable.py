"""The errors of a fetch: why an engine's page could not be read."""

from __future__ import annotations

from disagg_exporter.errors import DisaggError
from disagg_exporter.http.tls_errors import SPEAKING_FAULTS, TlsError, TlsFault


class EngineUnreachable(DisaggError):  # noqa: N818 the state of an engine, named as we say it
    """An engine's page could not be fetched; the text is the reason in one line.

    Args:
        cause: As in `DisaggError`.
        tls_fault: Set if TLS is the reason, or may be.
    """

    def __init__(self, text: str, *, cause: str = "", tls_fault: TlsFault | None = None) -> None:
        super().__init__(text, cause=cause)
        self.tls_fault = tls_fault

    @property
    def speaks(self) -> bool:
        """Whether a working server caused the TLS fault."""
        return self.tls_fault in SPEAKING_FAULTS

    @classmethod
    def by_tls(cls, url: str, error: TlsError) -> EngineUnreachable:
        """Return the error of a failed TLS connection to the engine's server."""
        cause = f"{url}: {error.cause}"
        return cls(f"{url}: {error}", cause=cause, tls_fault=error.fault)


class EngineRefused(EngineUnreachable):
    """A server answered, but not with the page.

    Args:
        text, cause: As in `EngineUnreachable`.
        status: The status of its response.
    """

    def __init__(self, text: str, *, cause: str = "", status: int = 0) -> None:
        super().__init__(text, cause=cause)
        self.status = status


class ResponseError(DisaggError):
    """The response is not valid HTTP; the text says why.

    Args:
        text: Why.
        tls_fault: Set if the server seems to expect TLS.
    """

    def __init__(self, text: str, tls_fault: TlsFault | None = None) -> None:
        super().__init__(text)
        self.tls_fault = tls_fault
