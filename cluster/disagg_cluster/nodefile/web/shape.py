"""The sections of a web-config file; an empty text means the same as an absent key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.values import AnyText, Section

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


def seconds_of(duration: str | int) -> float | None:
    """Return the seconds of `1m30s`, `100ms` or 0; None for no duration. A bare number is in ns."""
    if isinstance(duration, int):
        return duration * 1e-9 if duration >= 0 else None
    if duration in ("", "0"):
        return 0.0
    if _PART.sub("", duration):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))


_TLS13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")

OPENSSL_NAMES: Mapping[str, str] = {
    # TLS 1.3 suites are always on, in Go as in Python; naming them changes nothing.
    **dict.fromkeys(_TLS13, ""),
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
"""OpenSSL's name by Go's (tls.CipherSuites of Go 1.24); empty if there is nothing to set."""

CURVES: Mapping[str, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}


Texts = Annotated[tuple[AnyText, ...], Field(strict=False)]
Version = Literal["TLS12", "TLS13"]


class TlsServerConfig(Section):
    """How the port is encrypted, and which clients it accepts."""

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


class HttpServerConfig(Section):
    """Settings of every response. HTTP/2 may be allowed; clients are then answered in 1.1."""

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

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig | None = None
    basic_auth_users: dict[str, AnyText] | None = Field(
        default=None, description="a mapping of names to bcrypt hashes"
    )
    rate_limit: RateLimit | None = None
