from __future__ import annotations

import base64
import threading

import bcrypt
import pytest

from disagg_exporter.http.server.authentication import Passwords, TooManyGuessesError


class Checker:
    """Stands for bcrypt: a hash is the password after a `#`; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append((password, hashed))
        return hashed == b"#" + password


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_only_a_user_with_the_right_password_is_admitted() -> None:
    users = Passwords({"ann": "#one", "bob": "#two"}, Checker())

    assert users.admit(basic("ann", "one"))
    assert not users.admit(basic("ann", "two"))
    assert not users.admit(basic("eve", "one"))


def test_a_scrape_after_the_first_costs_no_hash() -> None:
    check = Checker()
    users = Passwords({"ann": "#one"}, check)

    assert [users.admit(basic("ann", "one")) for _ in range(5)] == [True] * 5
    assert len(check.asked) == 1


def test_a_repeated_wrong_password_costs_one_hash() -> None:
    check = Checker()
    users = Passwords({"ann": "#one"}, check)

    assert [users.admit(basic("ann", "no")) for _ in range(5)] == [False] * 5
    assert len(check.asked) == 1


def test_a_flood_of_guesses_evicts_no_known_user() -> None:
    check = Checker()
    users = Passwords({"ann": "#one"}, check)
    users.admit(basic("ann", "one"))
    for n in range(1000):
        assert not users.admit(basic("ann", f"guess {n}"))
    asked = len(check.asked)

    assert users.admit(basic("ann", "one"))
    assert len(check.asked) == asked


def test_a_known_user_does_not_wait_for_guesses_of_others() -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(password: bytes, hashed: bytes) -> bool:
        if password == b"guess":
            begun.set()
            assert end.wait(30)
        return hashed == b"#" + password

    users = Passwords({"ann": "#one"}, slow)
    users.admit(basic("ann", "one"))
    guess = threading.Thread(target=users.admit, args=(basic("ann", "guess"),))
    guess.start()
    try:
        assert begun.wait(30)
        assert users.admit(basic("ann", "one"))
        assert guess.is_alive()
    finally:
        end.set()
        guess.join()


def test_an_unknown_name_costs_as_many_hashes_as_a_known_one() -> None:
    """Otherwise the time of a response would reveal which names exist."""
    check = Checker()
    users = Passwords({"ann": "#one", "bob": "#two"}, check)

    for n in range(20):
        assert not users.admit(basic(f"eve-{n}", "x"))
    assert len(check.asked) == 20
    assert {hashed for _, hashed in check.asked} == {b"#one", b"#two"}


def test_the_password_of_the_stand_in_hash_admits_no_unknown_name() -> None:
    users = Passwords({"ann": "#one"}, Checker())

    assert not users.admit(basic("eve", "one"))
    assert not users.admit(basic("eve", "one"))


@pytest.mark.parametrize(
    "authorization",
    ["", "Basic", "Basic !!", "Bearer YW5uOm9uZQ==", "Basic YW5u", "Basic \u00e9", "Basic YQ==:"],
)
def test_a_header_without_valid_credentials_costs_no_hash(authorization: str) -> None:
    check = Checker()

    assert not Passwords({"ann": "#one"}, check).admit(authorization)
    assert check.asked == []


@pytest.mark.parametrize("prefix", [b"2a", b"2b", b"2y"])
def test_hashes_of_htpasswd_and_of_bcrypt_are_accepted(prefix: bytes) -> None:
    hashed = bcrypt.hashpw(b"s\xc3\xa9cret", bcrypt.gensalt(4)).replace(b"$2b$", b"$%s$" % prefix)
    users = Passwords({"prom": hashed.decode()})

    assert users.admit(basic("prom", "s\u00e9cret"))
    assert not users.admit(basic("prom", "secret"))


def test_a_password_over_72_bytes_is_truncated_as_by_htpasswd() -> None:
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()

    assert Passwords({"prom": hashed}).admit(basic("prom", "x" * 100))


def test_guesses_over_the_queue_limit_are_refused_while_a_known_user_does_not_wait() -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def slow(password: bytes, hashed: bytes) -> bool:
        began.release()
        return hashed == b"#" + password or not go_on.wait(30)

    users = Passwords({"ann": "#one"}, slow)
    assert users.admit(basic("ann", "one"))
    began.acquire()
    turned_away = threading.Semaphore(0)

    def guess(word: str) -> None:
        try:
            users.admit(basic("ann", word))
        except TooManyGuessesError:
            turned_away.release()

    guesses = [threading.Thread(target=guess, args=(f"guess {n}",)) for n in range(20)]
    try:
        for thread in guesses:
            thread.start()
        assert all(turned_away.acquire(timeout=30) for _ in range(12))
        assert users.admit(basic("ann", "one"))
    finally:
        go_on.set()
        for thread in guesses:
            thread.join()
    assert not turned_away.acquire(blocking=False)
