"""What a web-config file says, section by section; an empty text means what an absent key does."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.section import Section
from disagg_cluster.config.values import AnyText

Texts = Annotated[tuple[AnyText, ...], Field(strict=False)]
Version = Literal["TLS12", "TLS13"]


class TlsServer(Section):
    """How the port is encrypted, and which clients it takes."""

    cert: AnyText | None = Field(default=None, description="a certificate chain as PEM text")
    key: AnyText | None = Field(default=None, description="a private key as PEM text")
    client_ca: AnyText | None = Field(default=None, description="certificates as PEM text")
    cert_file: AnyText | None = Field(default=None, description="the path of a certificate chain")
    key_file: AnyText | None = Field(default=None, description="the path of a private key")
    client_ca_file: AnyText | None = Field(default=None, description="the path of certificates")
    client_auth_type: Literal[
        "", "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
    ] = Field(
        default="NoClientCert",
        description="one of NoClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert",
    )
    client_allowed_sans: Texts | None = Field(default=None, description="a list of names")
    min_version: Version = Field(default="TLS12", description="one of TLS12, TLS13")
    max_version: Version = Field(default="TLS13", description="one of TLS12, TLS13")
    cipher_suites: Texts | None = Field(default=None, description="a list of cipher suites")
    prefer_server_cipher_suites: bool = Field(default=True, description="true or false")
    curve_preferences: Texts | None = Field(default=None, description="a list of curves")


class HttpServer(Section):
    """What goes with every answer. HTTP/2 may be allowed; clients are then answered in 1.1."""

    http2: bool = Field(default=True, description="true or false")
    headers: dict[str, AnyText] | None = Field(
        default=None, description="a mapping of headers to text"
    )


class RateLimit(Section):
    """How often requests are answered: a token each `interval`, at most `burst` at a time."""

    interval: AnyText | int = Field(
        default=0, union_mode="left_to_right", description='a duration such as "100ms", or 0'
    )
    burst: Annotated[int, Field(ge=0)] = Field(default=0, description="a number of requests")


class WebConfig(Section):
    """A whole web-config file."""

    tls_server_config: TlsServer | None = None
    http_server_config: HttpServer | None = None
    basic_auth_users: dict[str, AnyText] | None = Field(
        default=None, description="a mapping of names to bcrypt hashes"
    )
    rate_limit: RateLimit | None = None
