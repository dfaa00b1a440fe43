"""Who may read the pages, over what, and how often: what the server asks before it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from disagg_exporter.http.server.passwords import Passwords, TooManyGuessesError
from disagg_exporter.http.server.routes import PLAIN, Answer

if TYPE_CHECKING:
    import ssl


class Bucket:
    """A bucket of tokens, one for a request: it holds `burst` and gains one each interval.

    Args:
        interval_seconds: From one token to the next; above 0.
        burst: How many it holds.
        clock: Seconds that only grow.
    """

    def __init__(
        self, interval_seconds: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_seconds = interval_seconds
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._told_seconds = clock()

    def take(self) -> bool:
        """Take a token, if there is one."""
        with self._lock:
            now_seconds = self._clock()
            gained = (now_seconds - self._told_seconds) / self._interval_seconds
            self._tokens = min(self._burst, self._tokens + gained)
            self._told_seconds = now_seconds
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@dataclass(frozen=True, slots=True)
class Access:
    """The conditions under which the pages are served; by default none.

    `tls` encrypts; `client_names` are the subject alternative names of which a client's
    certificate must have one, if there are any. `headers` go with every answer.
    """

    tls: ssl.SSLContext | None = None
    client_names: frozenset[str] = frozenset()
    headers: tuple[tuple[str, str], ...] = ()
    passwords: Passwords | None = None
    bucket: Bucket | None = None

    def refusal(self, authorization: str) -> Answer | None:
        """What to answer instead of the page, or None; `authorization` is the header's text."""
        if self.bucket is not None and not self.bucket.take():
            return Answer(HTTPStatus.TOO_MANY_REQUESTS, PLAIN, b"too many requests\n")
        try:
            if self.passwords is None or self.passwords.admit(authorization):
                return None
        except TooManyGuessesError:
            later = (("Retry-After", "1"),)
            busy = b"too many passwords to check\n"
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, busy, later)
        challenge = (("WWW-Authenticate", 'Basic realm="disagg-node", charset="UTF-8"'),)
        return Answer(HTTPStatus.UNAUTHORIZED, PLAIN, b"name and password, please\n", challenge)


OPEN = Access()
"""No conditions."""
