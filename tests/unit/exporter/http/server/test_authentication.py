from __future__ import annotations

import base64

from disagg_exporter.http.server.authentication import OPEN, Access, Bucket
from disagg_exporter.http.server.passwords import Passwords


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_conditions_nobody_is_refused() -> None:
    assert OPEN.refusal("") is None


def test_who_is_not_admitted_is_asked_for_name_and_password() -> None:
    access = Access(passwords=Passwords({"ann": "hash"}, lambda password, _: password == b"one"))
    good = base64.b64encode(b"ann:one").decode()

    answer = access.refusal("")
    assert answer is not None
    assert (answer.status, dict(answer.headers)["WWW-Authenticate"][:5]) == (401, "Basic")
    assert access.refusal(f"Basic {good}") is None


def test_a_bucket_gives_its_burst_and_then_one_an_interval() -> None:
    clock = Clock()
    bucket = Bucket(0.5, 2, clock)

    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]


def test_a_bucket_that_nobody_used_holds_no_more_than_its_burst() -> None:
    clock = Clock()
    bucket = Bucket(0.5, 2, clock)
    clock.now += 1000

    assert [bucket.take() for _ in range(3)] == [True, True, False]


def test_a_guess_is_refused_before_its_password_is_looked_at() -> None:
    asked: list[bytes] = []
    users = Passwords({"ann": "hash"}, lambda password, _: bool(asked.append(password)))
    access = Access(passwords=users, bucket=Bucket(1.0, 1, Clock()))
    guess = "Basic " + base64.b64encode(b"ann:guess").decode()

    statuses = [answer and answer.status for answer in (access.refusal(guess) for _ in range(3))]

    assert (statuses, len(asked)) == ([401, 429, 429], 1)
