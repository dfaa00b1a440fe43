"""A non-blocking TLS client that counts every byte it reads, including the handshake's.

OpenSSL gets the received bytes piece by piece (`MemoryBIO`). If it read from the socket itself, it
would continue for as long as a server sends bytes that are no answer, such as endless tickets.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from disagg_exporter.http.tls_errors import TlsError, TlsFault, Trust, Verified

OVERHEAD_BYTES = 256 * 1024
"""Limit for bytes around one answer: certificates, tickets, the records' framing."""
_READ_BYTES = 64 * 1024

# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_EXPIRED = (9, 10)
_OTHER_NAME = (62, 64)
_NO_ISSUER = (2, 18, 19, 20, 21)
# Alerts of a server that requires a client certificate.
_WANTS_OURS = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "ALERT_ACCESS_DENIED")
# OpenSSL's reasons when the first bytes are of another protocol.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE")


class ClientTls:
    """The TLS settings for one server, created once for many connections.

    Args:
        trust: How the server is verified.

    Raises:
        TlsError: Nothing is trusted, or a file cannot be used.
    """

    def __init__(self, trust: Trust) -> None:
        self.verified: Verified = trust.verified
        self._trust = trust
        pinned = _certificates(trust.pinned) if self.verified is Verified.PINNED else ()
        self._pinned = frozenset(pinned)
        self._context = _context(trust, self.verified, pinned)

    def channel(self, sock: socket.socket, host: str) -> TlsChannel:
        """Wrap a socket that is connecting to the server at `host`.

        Raises:
            TlsError: The name cannot be in a certificate.
        """
        name = self._trust.server_name or host
        try:
            return TlsChannel(sock, self._context, name, self._pinned)
        except (ValueError, TypeError, ssl.SSLError):  # too long, a NUL
            raise TlsError(TlsFault.OTHER_NAME, f"{name!a} is no name of a server") from None


class TlsChannel:
    """TLS on a non-blocking socket, with the interface of such a socket.

    Args:
        sock: Connecting or connected.
        context: The trust settings.
        server_name: The expected name.
        pinned: If not empty, the certificates (DER) of which the server must present one.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        server_name: str,
        pinned: frozenset[bytes],
    ) -> None:
        self._sock = sock
        self._pinned = pinned
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._unsent = b""
        self._shaken = False
        self._overhead_left = OVERHEAD_BYTES

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket without notifying the server."""
        self._sock.close()

    def begin_answer(self) -> None:
        """Reset the allowance of bytes around an answer: a new one is awaited."""
        self._overhead_left = OVERHEAD_BYTES

    def awaits(self, unsent: bytes) -> int:
        """Return the socket event to wait for; `unsent` is what is yet to be sent."""
        waits_to_send = self._unsent or (self._shaken and unsent)
        return selectors.EVENT_WRITE if waits_to_send else selectors.EVENT_READ

    def send(self, data: bytes) -> int:
        """Send all or nothing, after the handshake.

        Raises:
            BlockingIOError: The caller has to wait.
            TlsError: TLS fails.
            OSError: The connection is lost.
        """
        self._shake()
        self._flush()
        if not data:
            return 0
        count = self._tls.write(data)
        self._flush()
        return count

    def recv_into(self, buffer: memoryview) -> int:
        """Receive; 0 once the server has ended the TLS session.

        Raises:
            As `send`.
        """
        while True:
            try:
                count = cast("int", self._tls.read(len(buffer), cast("bytearray", buffer)))
            except ssl.SSLWantReadError:
                self._receive()
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLError as error:
                raise self._failure(error) from None
            else:
                self._overhead_left += count
                return count

    def last_words(self) -> TlsError | None:
        """Return the TLS alert that preceded a close, such as for a missing client certificate."""
        try:
            self._shake()
            self.recv_into(memoryview(bytearray(1)))
        except TlsError as error:
            return error
        except OSError:
            return None
        return None

    def _shake(self) -> None:
        while not self._shaken:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except ssl.SSLError as error:
                self._say_why()
                raise self._failure(error) from None
            else:
                self._shaken = True
                # OpenSSL also accepts a certificate signed by a pinned one.
                if self._pinned and self._tls.getpeercert(binary_form=True) not in self._pinned:
                    raise TlsError(TlsFault.NOT_PINNED)

    def _receive(self) -> None:
        """Pass the received bytes to OpenSSL, within the allowance."""
        data = self._sock.recv(_READ_BYTES)
        if not data:
            # Closed within a record or the handshake.
            raise ConnectionResetError(errno.ECONNRESET, "closed without the end of TLS")
        self._overhead_left -= len(data)
        if self._overhead_left < 0:
            raise TlsError(TlsFault.FAILED, "too many bytes around the answer")
        self._incoming.write(data)

    def _flush(self) -> None:
        """Send OpenSSL's outgoing bytes."""
        while self._unsent or self._outgoing.pending:
            self._unsent = self._unsent or self._outgoing.read()
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def _say_why(self) -> None:
        """Send the server an alert with the reason, for its log."""
        with suppress(OSError):
            self._flush()

    def _failure(self, error: ssl.SSLError) -> TlsError:
        reason = error.reason or "no reason was given"
        if isinstance(error, ssl.SSLCertVerificationError):
            fault = _fault_of_certificate(error.verify_code, pinned=bool(self._pinned))
            return TlsError(fault, error.verify_message)
        if any(word in reason for word in _WANTS_OURS):
            return TlsError(TlsFault.WANTS_OURS, reason)
        if not self._shaken and any(word in reason for word in _NO_TLS):
            return TlsError(TlsFault.NO_TLS, reason)
        return TlsError(TlsFault.FAILED, reason)


def _fault_of_certificate(code: int, *, pinned: bool) -> TlsFault:
    if code in _EXPIRED:
        return TlsFault.EXPIRED
    if pinned and code in _NO_ISSUER:
        # OpenSSL trusts pinned ones as issuers: it is neither pinned nor signed by a pinned one.
        return TlsFault.NOT_PINNED
    return TlsFault.OTHER_NAME if code in _OTHER_NAME else TlsFault.UNTRUSTED


def _context(trust: Trust, verified: Verified, pinned: Sequence[bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As in Go, a server's certificate may itself be trusted.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    reading: Path | None = None
    try:
        if verified is Verified.CA:
            reading = trust.ca_file
            context.load_verify_locations(cafile=reading)
        elif verified is Verified.PINNED:
            # The certificate itself is known, so neither its name nor its signer matters.
            context.check_hostname = False
            context.load_verify_locations(cadata=b"".join(pinned))
        else:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if trust.cert_file is not None:
            reading = trust.cert_file
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(trust.cert_file, trust.key_file, lambda: b"")
    except OSError as error:
        # OpenSSL's errors are OSErrors too, and name no file.
        unread = isinstance(error, ssl.SSLError)
        why = "does not have the expected PEM content" if unread else error.strerror
        raise TlsError(TlsFault.UNREADABLE, f"{reading or 'its certificate'}: {why}") from None
    return context


def _certificates(pems: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the servers' own certificates (DER); files without one are skipped.

    A file may be in the middle of a rewrite, which must not invalidate the other certificates.
    """
    found = tuple(der for pem in pems if (der := server_certificate(pem)) is not None)
    if not found:
        raise TlsError(TlsFault.UNREADABLE, "its certificate file has no certificate in PEM")
    return found


def server_certificate(pem: bytes) -> bytes | None:
    """Return a file's first certificate (DER), which is the server's own; None if it has none."""
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    body, found, _ = (begin + pem.partition(begin)[2]).partition(end)
    if not found:
        return None
    try:
        der = ssl.PEM_cert_to_DER_cert((body + found).decode("ascii"))
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=der)
    except (ValueError, ssl.SSLError):  # including binascii's errors
        return None
    return der
