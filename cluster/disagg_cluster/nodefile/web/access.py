"""Turns a web-config file into conditions of access to the metrics page, kept up to date."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from disagg_cluster.config.problems import ConfigError, Finding, config_error
from disagg_cluster.nodefile.web.reading import WebFiles, read, understand
from disagg_cluster.nodefile.web.shape import (
    CURVES,
    OPENSSL_NAMES,
    RateLimit,
    TlsServerConfig,
    seconds_of,
)
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.http.server.authentication import Access, Passwords
from disagg_exporter.http.tls_socket import plain_name
from disagg_exporter.model import CollectorStatus
from disagg_exporter.steps.rate_limiter import RateLimiter

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
    """Build the conditions of access that the files ask for.

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
        rate_limiter=_rate_limiter(config.rate_limit),
    )


def _context(tls: TlsServerConfig, files: WebFiles) -> tuple[ssl.SSLContext, list[Finding]]:
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


def _suites(context: ssl.SSLContext, tls: TlsServerConfig) -> Iterator[Finding]:
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


def _identity(context: ssl.SSLContext, tls: TlsServerConfig, files: WebFiles) -> Iterator[Finding]:
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


def _clients(context: ssl.SSLContext, tls: TlsServerConfig, files: WebFiles) -> Iterator[Finding]:
    context.verify_mode = _CLIENTS[tls.client_auth_type]
    try:
        context.load_verify_locations(cadata=_content(tls, files, "client_ca").decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        place = "client_ca" if tls.client_ca else "client_ca_file"
        yield Finding(("tls_server_config", place), "no certificates in PEM")


def _content(tls: TlsServerConfig, files: WebFiles, key: str) -> bytes:
    content = files.named.get(f"{key}_file", getattr(tls, key) or "")
    return content.encode() if isinstance(content, str) else content


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path at which OpenSSL reads these bytes; they exist in memory only."""
    descriptor = os.memfd_create("disagg-pem")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _rate_limiter(rate: RateLimit | None) -> RateLimiter | None:
    seconds = seconds_of(rate.interval) if rate else None
    return RateLimiter(1 / seconds, rate.burst) if rate and seconds else None


COLLECTOR = "web_config"
_JOIN_SECONDS = 1.0


class WebConfigWatch:
    """The access that a web-config file asks for, rebuilt when it or the files it names change.

    Checks run on a separate thread: a file on a server that hangs must not delay others. A
    half-written file could be one that requires no password, so a change counts only once it has
    been stable for a moment, and an empty file never does.

    Args:
        path: The file.
        log: Logs each change, and each new reason why a change cannot be used.
        every_seconds: The interval between checks.
        settle_seconds: How long a change must have been stable.
        reading: Reads the file and those that it names.
        collector: The collector's name on the page.

    Raises:
        ConfigError: The file cannot be used now, with all its problems.
    """

    def __init__(
        self,
        path: Path,
        log: logging.Logger,
        every_seconds: float = 5.0,
        settle_seconds: float = 0.5,
        reading: Callable[[Path], WebFiles] = read,
        collector: str = COLLECTOR,
    ) -> None:
        self._path = path
        self._log = log
        self._every_seconds = every_seconds
        self._settle_seconds = settle_seconds
        self._files: WebFiles | None = None
        self._access = Access()
        self._health = CollectorHealth(
            collector,
            log,
            subject="web config",
            recovered=f"{path} is again what is in force",
            level=logging.ERROR,
        )
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web-config", daemon=True)
        self._read = reading
        self._check(reading(path))
        self._health.succeed()

    @property
    def access(self) -> Access:
        """The conditions now in force."""
        return self._access

    def status(self) -> CollectorStatus:
        """The status of the last check: failed while the file cannot be used."""
        return self._health.status()

    def check_now(self) -> None:
        """Request a check; returns before it is made."""
        self._wake.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._wake.wait(self._every_seconds)
            self._wake.clear()
            with self._health.round() as problems:
                try:
                    self._check_twice()
                except ConfigError as error:
                    problems[""] = f"the one before stays in force:\n{error}"

    def _check_twice(self) -> None:
        files = self._read(self._path)
        while files != self._files and not self._ending.wait(self._settle_seconds):
            before, files = files, self._read(self._path)
            if files == before:
                break
        if not self._ending.is_set():
            self._check(files)

    def _check(self, files: WebFiles) -> None:
        if files == self._files:
            return
        if self._files is not None and not files.text.strip():
            why = Finding((), "is empty now: say {} if nothing is to be asked for")
            raise config_error([why], str(self._path))
        self._access = access_of(files)
        self._log.info("web config: %s is in force", self._path)
        self._files = files
