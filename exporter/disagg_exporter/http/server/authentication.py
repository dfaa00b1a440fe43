"""Access conditions of the pages: TLS, passwords and rate limit.

Passwords are stored as bcrypt hashes, each check of which takes a tenth of a second: a scrape every
second would use a tenth of a core. So the result of a check is cached, by a digest under a key that
never leaves the process. The time of a refusal does not depend on which names exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from disagg_exporter.errors import DisaggError
from disagg_exporter.http.server.routes import PLAIN, Response
from disagg_exporter.steps.rate_limiter import RateLimiter

if TYPE_CHECKING:
    import ssl


CheckHash = Callable[[bytes, bytes], bool]
"""Returns whether a password of at most 72 bytes matches a hash."""

_BCRYPT_BYTES = 72
_REFUSALS = 256
_MOST_WAITING = 8


class TooManyGuessesError(DisaggError):
    """More passwords arrive than can be checked."""


class Passwords:
    """The users of the pages.

    Args:
        hashes: bcrypt hashes by user; at least one.
        check: Compares a password with a hash, slowly.
    """

    def __init__(self, hashes: Mapping[str, str], check: CheckHash | None = None) -> None:
        self._hashes = {name.encode(): text.encode() for name, text in hashes.items()}
        self._check = check or _bcrypt()
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(_MOST_WAITING)
        self._known: dict[bytes, bytes] = {}
        self._refused: dict[bytes, None] = {}

    def admit(self, authorization: str) -> bool:
        """Return whether an Authorization header has a user's name and password.

        Raises:
            TooManyGuessesError: Too many others already wait to be checked.
        """
        credentials = _credentials(authorization)
        if credentials is None:
            return False
        name, password = credentials
        digest = self._digest(len(name).to_bytes(8, "big") + name + password)
        if (known := self._remembered(name, digest)) is not None:
            return known
        # More would wait beyond their deadline, each on its own thread.
        if not self._turns.acquire(blocking=False):
            raise TooManyGuessesError("too many passwords are waiting to be checked")
        try:
            return self._judge(name, password, digest)
        finally:
            self._turns.release()

    def _judge(self, name: bytes, password: bytes, digest: bytes) -> bool:
        # One at a time: a flood of guesses uses one core at most; cached users do not wait.
        with self._lock:
            if (known := self._remembered(name, digest)) is not None:
                return known
            hashed = self._hashes.get(name)
            matches = self._check(password[:_BCRYPT_BYTES], hashed or self._stand_in(name))
            if hashed is not None and matches:
                self._known[name] = digest
                return True
            if len(self._refused) >= _REFUSALS:
                self._refused.clear()
            self._refused[digest] = None
            return False

    def _remembered(self, name: bytes, digest: bytes) -> bool | None:
        """Return the cached result for these credentials; None if there is none."""
        if hmac.compare_digest(self._known.get(name, b""), digest):
            return True
        return False if digest in self._refused else None

    def _stand_in(self, name: bytes) -> bytes:
        """Return the user's hash that an unknown name is checked against, always the same one.

        So an unknown name takes as long as some user's, at any cost of the hashes.
        """
        place = int.from_bytes(self._digest(name)[:8], "big") % len(self._hashes)
        return list(self._hashes.values())[place]

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, hashlib.sha256)


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        plain = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    name, colon, password = plain.partition(b":")
    return (name, password) if colon else None


def _bcrypt() -> CheckHash:
    import bcrypt

    return bcrypt.checkpw


@dataclass(frozen=True, slots=True)
class Access:
    """The conditions under which the pages are served; by default none.

    `tls` encrypts. If there are `client_names`, a client's certificate must have one of them as a
    subject alternative name. `headers` are added to every answer.
    """

    tls: ssl.SSLContext | None = None
    client_names: frozenset[str] = frozenset()
    headers: tuple[tuple[str, str], ...] = ()
    passwords: Passwords | None = None
    rate_limiter: RateLimiter | None = None

    def refusal(self, authorization: str) -> Response | None:
        """Return the response to send instead of the page, or None; takes the header's text."""
        if self.rate_limiter is not None and not self.rate_limiter.take():
            return Response(HTTPStatus.TOO_MANY_REQUESTS, PLAIN, b"too many requests\n")
        try:
            if self.passwords is None or self.passwords.admit(authorization):
                return None
        except TooManyGuessesError:
            later = (("Retry-After", "1"),)
            busy = b"too many passwords are waiting to be checked\n"
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, busy, later)
        challenge = (("WWW-Authenticate", 'Basic realm="disagg-node", charset="UTF-8"'),)
        return Response(HTTPStatus.UNAUTHORIZED, PLAIN, b"name and password required\n", challenge)


OPEN = Access()
"""No conditions."""
