"""Who may read the pages, over what, and how often: what the server asks before it answers."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from disagg_exporter.http.server.passwords import Passwords, TooManyGuessesError
from disagg_exporter.http.server.routes import PLAIN, Answer
from disagg_exporter.steps.rate_limiter import RateLimiter

if TYPE_CHECKING:
    import ssl


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
    rate_limiter: RateLimiter | None = None

    def refusal(self, authorization: str) -> Answer | None:
        """What to answer instead of the page, or None; `authorization` is the header's text."""
        if self.rate_limiter is not None and not self.rate_limiter.take():
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
