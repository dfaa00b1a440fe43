"""Credentials and trusted authorities for a server; independent of the file that defines them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Trusted authorities and our own certificate: paths as configured, None where none is."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class Credentials:
    """The value of an Authorization header, and the TLS settings.

    `source` is the file that defines them; relative paths are from its folder.
    """

    authorization: str = field(default="", repr=False)
    tls: TlsFiles = field(default_factory=TlsFiles)
    source: Path = Path()

    @property
    def tls_files(self) -> tuple[Path, ...]:
        """The files from which `context` is made."""
        named = (self.tls.ca_file, self.tls.cert_file, self.tls.key_file)
        return tuple(self.source.parent / each for each in named if each)

    def context(self, pinned: bytes = b"") -> ssl.SSLContext:
        """Return a client's TLS context.

        Args:
            pinned: The server's only certificate, in PEM, where that is known; then no other is
                trusted, not even those that the file names.

        Raises:
            ConfigError: A file cannot be read, or contains no certificates.
        """
        import ssl

        from disagg_cluster.config.problems import Finding, config_error

        tls, context = self.tls, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        key = "ca_file"
        try:
            # As in Go, a server's certificate may itself be the trusted one.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if pinned:
                # The certificate itself is known, so neither its name nor its issuer matters.
                context.check_hostname = False
                context.load_verify_locations(cadata=pinned.decode("ascii"))
            elif tls.insecure_skip_verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            elif tls.ca_file:
                context.load_verify_locations(cafile=self.source.parent / tls.ca_file)
            else:
                context.load_default_certs()
            key = "cert_file"
            if tls.cert_file:
                own_key = self.source.parent / (tls.key_file or tls.cert_file)
                # Without a password OpenSSL would prompt for one on the terminal.
                context.load_cert_chain(self.source.parent / tls.cert_file, own_key, lambda: b"")
        except OSError as error:
            # OpenSSL's own errors are OSErrors, too, and name no file.
            unread = isinstance(error, ssl.SSLError)
            why = (
                "does not have the expected PEM content"
                if unread
                else f"cannot be read: {error.strerror}"
            )
            raise config_error([Finding(("tls_config", key), why)], str(self.source)) from None
        return context
