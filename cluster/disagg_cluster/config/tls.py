"""TLS settings for an engine: whom we trust to be it, and our own certificate."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from disagg_cluster.config.values import PathText, Section
from disagg_exporter.http.tls_words import Trust


class EngineTls(Section):
    """What a person says of the TLS of an engine, or of all that are found."""

    ca_file: PathText | None = Field(
        default=None, description="the path of a PEM file with those who sign its certificate"
    )
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$")] | None = (
        Field(default=None, description="the name for which its certificate is")
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
        """How a worker of our own is trusted in a health probe: its socket identifies it."""
        cert_file = _path(self.cert_file)
        key_file = _path(self.key_file or self.cert_file)
        return Trust(insecure=True, cert_file=cert_file, key_file=key_file)

    def trust(self, pinned: tuple[bytes, ...], host: str) -> Trust:
        """Return how an engine is verified.

        Args:
            pinned: Its own certificates, in PEM, as far as its process makes them visible.
            host: The host it is requested at. It is mostly an address, for which hardly any
                certificate is valid: if the engine's own is known, that decides.
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
"""The settings without any statement: the engine's own certificate is trusted, if it is visible."""


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
