from __future__ import annotations

import base64

from disagg_exporter.http.server.authentication import OPEN, Access, Passwords
from disagg_exporter.steps.rate_limiter import RateLimiter


def test_open_access_refuses_no_request() -> None:
    assert OPEN.refusal("") is None


def test_an_unauthorized_request_is_asked_for_basic_credentials() -> None:
    access = Access(passwords=Passwords({"ann": "hash"}, lambda password, _: password == b"one"))
    good = base64.b64encode(b"ann:one").decode()

    answer = access.refusal("")
    assert answer is not None
    assert (answer.status, dict(answer.headers)["WWW-Authenticate"][:5]) == (401, "Basic")
    assert access.refusal(f"Basic {good}") is None


def test_guesses_over_the_rate_limit_are_refused_without_a_password_check() -> None:
    asked: list[bytes] = []
    users = Passwords({"ann": "hash"}, lambda password, _: bool(asked.append(password)))
    access = Access(passwords=users, rate_limiter=RateLimiter(1.0, 1, lambda: 0))
    guess = "Basic " + base64.b64encode(b"ann:guess").decode()

    statuses = [answer and answer.status for answer in (access.refusal(guess) for _ in range(3))]

    assert (statuses, len(asked)) == ([401, 429, 429], 1)
