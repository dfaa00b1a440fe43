"""TLS settings for an engine: how it is verified, and our own certificate."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from disagg_cluster.config.values import PathText, Section
from disagg_exporter.http.tls_errors import Trust


class EngineTls(Section):
    """TLS settings of one engine, or the default for all attached engines."""

    ca_file: PathText | None = Field(
        default=None, description="the path of a PEM file with the CAs that sign its certificate"
    )
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$")] | None = (
        Field(default=None, description="the name that its certificate is for")
    )
    cert_file: PathText | None = Field(
        default=None, description="the path of our own certificate, in PEM"
    )
    key_file: PathText | None = Field(
        default=None, description="the path of the private key of cert_file, in PEM"
    )
    insecure: bool = Field(default=False, description="true or false")

    @property
    def probing(self) -> Trust:
        """How a health probe trusts one of our own workers: its socket identifies it."""
        cert_file = _path(self.cert_file)
        key_file = _path(self.key_file or self.cert_file)
        return Trust(insecure=True, cert_file=cert_file, key_file=key_file)

    def trust(self, pinned: tuple[bytes, ...], host: str) -> Trust:
        """Return how an engine is verified.

        Args:
            pinned: Its own certificates, in PEM, as far as its process makes them visible.
            host: The host it is requested at. It is usually an address, for which hardly any
                certificate is valid: if the engine's own is known, that one decides.
        """
        ca_file = self.ca_file
        if pinned and self.server_name is None and _is_address(host):
            ca_file = None
        return Trust(
            ca_file=_path(ca_file),
            pinned=pinned,
            insecure=self.insecure,
            server_name=self.server_name or "",
            cert_file=_path(self.cert_file),
            key_file=_path(self.key_file or self.cert_file),
        )


UNSPECIFIED_TLS = EngineTls()
"""The default settings: the engine's own certificate is trusted, if it is visible."""


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
