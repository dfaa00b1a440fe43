"""From a web-config to what the server asks before it answers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.nodefile.web.durations import seconds_of
from disagg_cluster.nodefile.web.reading import WebFiles, read, understand
from disagg_cluster.nodefile.web.shape import RateLimit, TlsServer
from disagg_cluster.nodefile.web.suites import CURVES, OPENSSL_NAMES
from disagg_exporter.http.server.authentication import Access, Bucket
from disagg_exporter.http.server.passwords import Passwords
from disagg_exporter.http.tls_socket import plain_name

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


def load(path: Path) -> Access:
    """Read a web-config file.

    Raises:
        ConfigError: It cannot be used; all its problems are in the error.
    """
    return access_of(read(path))


def access_of(files: WebFiles) -> Access:
    """Make the conditions that the files ask for.

    Raises:
        ConfigError: They cannot be used; all their problems are in the error.
    """
    config, findings, lines = understand(files)
    tls, context = config.tls_server_config, None
    if tls is not None and not findings:
        context, findings = _context(tls, files)
    if findings:
        raise config_error(findings, str(files.path), lines)
    http = config.http_server_config
    headers = (http.headers if http else None) or {}
    names = (tls.client_allowed_sans if tls else None) or ()
    return Access(
        tls=context,
        client_names=frozenset(map(plain_name, names)),
        headers=tuple((name, value) for name, value in headers.items() if value),
        passwords=Passwords(config.basic_auth_users) if config.basic_auth_users else None,
        bucket=_bucket(config.rate_limit),
    )


def _context(tls: TlsServer, files: WebFiles) -> tuple[ssl.SSLContext, list[Finding]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    # A client must not make us compress or renegotiate, which costs us more than it.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    findings = [*_suites(context, tls), *_identity(context, tls, files)]
    if tls.client_auth_type in _CLIENTS:
        findings += _clients(context, tls, files)
    return context, findings


def _suites(context: ssl.SSLContext, tls: TlsServer) -> Iterator[Finding]:
    old = [name for suite in tls.cipher_suites or () if (name := OPENSSL_NAMES[suite])]
    try:
        if old:
            context.set_ciphers(":".join(old))
        elif tls.cipher_suites:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        for curve in tls.curve_preferences or ():
            context.set_ecdh_curve(CURVES[curve])
    except (ssl.SSLError, ValueError) as error:
        yield Finding(("tls_server_config",), f"this machine's OpenSSL refuses: {error}")


def _identity(context: ssl.SSLContext, tls: TlsServer, files: WebFiles) -> Iterator[Finding]:
    with ExitStack() as stack:
        chain = stack.enter_context(_as_file(_content(tls, files, "cert")))
        key = stack.enter_context(_as_file(_content(tls, files, "key")))
        try:
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(chain, key, password=lambda: b"")
        except ssl.SSLError as error:
            place = "cert" if tls.cert else "cert_file"
            if error.reason == "KEY_VALUES_MISMATCH":
                message = "the private key belongs to another certificate"
            else:
                message = "no certificate and private key in PEM; a key may not be encrypted"
            yield Finding(("tls_server_config", place), message)


def _clients(context: ssl.SSLContext, tls: TlsServer, files: WebFiles) -> Iterator[Finding]:
    context.verify_mode = _CLIENTS[tls.client_auth_type]
    try:
        context.load_verify_locations(cadata=_content(tls, files, "client_ca").decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        place = "client_ca" if tls.client_ca else "client_ca_file"
        yield Finding(("tls_server_config", place), "no certificates in PEM")


def _content(tls: TlsServer, files: WebFiles, key: str) -> bytes:
    content = files.named.get(f"{key}_file", getattr(tls, key) or "")
    return content.encode() if isinstance(content, str) else content


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path at which OpenSSL reads these bytes; they lie in memory and nowhere else."""
    descriptor = os.memfd_create("disagg-pem")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _bucket(rate: RateLimit | None) -> Bucket | None:
    seconds = seconds_of(rate.interval) if rate else None
    return Bucket(seconds, rate.burst) if rate and seconds else None
