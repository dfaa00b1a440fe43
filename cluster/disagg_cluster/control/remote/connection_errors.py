"""Explains why a daemon does not answer over gRPC, and what to do."""

from __future__ import annotations

import ssl
from pathlib import Path

from disagg_exporter.errors import DisaggError

_OTHER_NAME = "its certificate is for other names: use one of them as its address"
_REFUSED = (
    "nothing listens at that address: `control.grpc.listen` of its node file has the right one"
)
_NO_WAY = "that host cannot be reached from here"
_NO_ANSWER = "that host does not answer: is a firewall in between?"
_UNTRUSTED = "its certificate is signed by an unknown authority: give its CA file with --ca"
# Error messages of gRPC (1.85, with BoringSSL), what they mean and what to do.
_MEANINGS = (
    ("Hostname Verification Check failed", _OTHER_NAME),
    ("is not in peer certificate", _OTHER_NAME),
    ("certificate has expired", "its certificate has expired: renew it there"),
    ("CERTIFICATE_VERIFY_FAILED", _UNTRUSTED),
    ("WRONG_VERSION_NUMBER", "the server at that address does not use TLS: check the port"),
    ("Connection refused", _REFUSED),
    ("address lookup failed", "no host has that name"),
    ("Network is unreachable", _NO_WAY),
    ("No route to host", _NO_WAY),
    ("timed out", _NO_ANSWER),
)
# A proxy that rejects a client closes the connection without a reason.
_CLOSED = ("Socket closed", "Connection reset", "CERTIFICATE_REQUIRED")


class CredentialsError(DisaggError):
    """A certificate, key or token file cannot be used."""

    exit_code = 2


def unavailable_reason(details: str, cert: Path | None) -> str:
    """Explains the details of an `UNAVAILABLE`; returns them unchanged if they are not recognized.

    Args:
        details: gRPC's error message.
        cert: The client certificate we presented, if any.
    """
    for words, meaning in _MEANINGS:
        if words in details:
            return meaning
    if not any(words in details for words in _CLOSED):
        return details
    if cert is None:
        return (
            "it closed the connection: if it requires a client certificate, give --cert and --key"
        )
    return f"it closed the connection: {cert} may not be accepted there; its log says why"


def check_certificates(ca: Path | None, cert: Path | None, key: Path | None) -> None:
    """Check the files before gRPC does, whose errors name no file or abort the process.

    Raises:
        CredentialsError: A file cannot be read or is not PEM, or the key does not match the
            certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except OSError as error:
            raise CredentialsError(f"{ca}: {_reason(error, 'has no certificate in PEM')}") from None
    if cert is None and key is None:
        return
    if cert is None or key is None:
        raise CredentialsError("a certificate and its key go together: --cert and --key")
    try:
        # Without a password callback, OpenSSL would prompt on the terminal.
        context.load_cert_chain(cert, key, lambda: b"")
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            other = f"{key}: does not belong to the certificate {cert}"
            raise CredentialsError(other) from None
        what = "are not a certificate and a key in PEM; the key must not be encrypted"
        raise CredentialsError(f"{cert}, {key}: {_reason(error, what)}") from None


def _reason(error: OSError, unread: str) -> str:
    # OpenSSL's own errors are OSErrors, too.
    if isinstance(error, ssl.SSLError):
        return unread
    return f"cannot be read: {error.strerror or error}"
