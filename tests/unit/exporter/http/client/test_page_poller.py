from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_exporter.http.client.exchange import FetchRequest, FetchResult, ResponseParser
from disagg_exporter.http.client.page_poller import PagePoller
from disagg_exporter.http.client.unreachable import EngineUnreachable
from support.children import descriptors
from support.raw_server import raw_server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
Behave = Callable[[socket.socket, threading.Event], None]


def ask(base: str, key: str = "a", deadline_seconds: float = 10.0) -> FetchRequest:
    return FetchRequest(key, f"{base}/metrics", (address_of(base),), deadline_seconds)


def address_of(base: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    host, _, port = base.removeprefix("http://").rpartition(":")
    return socket.AF_INET, (host, int(port))


def told(asking: PagePoller, *asks: FetchRequest) -> dict[str, bytes | str | Exception]:
    """Ask all at once and wait for all."""
    for each in asks:
        asking.submit(each)
    got: list[FetchResult] = []
    while len(got) < len(asks):
        got += asking.poll()
    return {
        one.request.key: str(one.page).partition(": ")[2]
        if isinstance(one.page, EngineUnreachable)
        else one.page
        for one in got
    }


@pytest.fixture
def asking() -> Iterator[PagePoller]:
    with contextlib.closing(PagePoller(1000)) as asking:
        yield asking


def answer_all(connection: socket.socket, over: threading.Event) -> None:
    """Answer the request that was read, and those that follow it."""
    connection.settimeout(0.02)
    connection.sendall(OK)
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            if not connection.recv(65536):
                return
            connection.sendall(OK)


def answer_once(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(OK)


def answer_once_and_hang_up_on_the_next(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(OK)
    connection.recv(65536)


def test_a_poller_that_fails_for_lack_of_descriptors_leaks_none() -> None:
    open_before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(1)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as failed:
            PagePoller(1000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert failed.value.errno == errno.EMFILE
    assert descriptors() == open_before


def test_a_connection_is_kept_for_the_next_request(asking: PagePoller) -> None:
    with raw_server(answer_all) as (base, heads):
        for _ in range(3):
            assert told(asking, ask(base)) == {"a": b"hello"}

        assert len(heads) == 1  # of each connection the first


def test_no_connection_is_kept_when_keep_is_off() -> None:
    with (
        raw_server(answer_all) as (base, heads),
        contextlib.closing(PagePoller(1000, keep=False)) as asking,
    ):
        for _ in range(2):
            assert told(asking, ask(base)) == {"a": b"hello"}

        assert len(heads) == 2
        assert b"Connection: close" in heads[0]


@pytest.mark.parametrize("behave", [answer_once, answer_once_and_hang_up_on_the_next])
def test_a_kept_connection_closed_by_the_server_is_reopened(behave: Behave) -> None:
    with raw_server(behave) as (base, heads), contextlib.closing(PagePoller(1000)) as asking:
        for _ in range(3):
            assert told(asking, ask(base)) == {"a": b"hello"}

        assert len(heads) == 3


def test_an_unsolicited_response_is_not_used(asking: PagePoller) -> None:
    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(OK + OK.replace(b"hello", b"wrong"))
        over.wait(10)

    with raw_server(talk) as (base, _), raw_server(answer_all) as (other, _):
        assert told(asking, ask(base)) == {"a": b"hello"}
        assert told(asking, ask(other, "b")) == {"b": b"hello"}
        asking.submit(ask(base))

        assert told(asking, ask(other, "b")) == {"b": b"hello"}


def test_a_hanging_server_delays_no_other(asking: PagePoller) -> None:
    def hang(connection: socket.socket, over: threading.Event) -> None:
        over.wait(20)

    with raw_server(hang) as (silent, _), raw_server(answer_all) as (base, _):
        asking.submit(ask(silent, "silent"))
        for _ in range(3):
            assert told(asking, ask(base)) == {"a": b"hello"}


def test_each_request_on_a_kept_connection_has_its_own_deadline(
    asking: PagePoller,
) -> None:
    def answer_once_then_drip(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(OK)
        connection.recv(65536)
        with contextlib.suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    with raw_server(answer_once_then_drip) as (base, _):
        assert told(asking, ask(base)) == {"a": b"hello"}
        assert told(asking, ask(base, deadline_seconds=0.2)) == {"a": "no whole answer in 0.2 s"}


def test_a_response_that_arrived_in_time_counts_even_if_read_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as while the page of another engine is parsed; and it is longer than one read."""
    monkeypatch.setattr("disagg_exporter.http.client.page_poller._READ_BYTES", 64)
    body, sent, began_seconds = b"x" * 900, threading.Event(), time.monotonic()

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + body)
        sent.set()
        over.wait()

    with raw_server(answer) as (base, _), contextlib.closing(PagePoller(1000)) as asking:
        asking.submit(ask(base))
        assert sent.wait(10)
        monkeypatch.setattr(time, "monotonic", lambda: began_seconds + 1000)
        [one] = asking.poll()

    assert one.page == body


def test_the_next_address_of_a_host_is_tried_when_one_refuses(asking: PagePoller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        deaf = (socket.AF_INET, listener.getsockname())

    with raw_server(answer_all) as (base, _):
        both = FetchRequest("a", f"{base}/metrics", (deaf, address_of(base)), 10.0)
        assert told(asking, both) == {"a": b"hello"}
    assert told(asking, FetchRequest("b", "http://b/", (deaf,), 10.0)) == {
        "b": "Connection refused"
    }
    assert told(asking, FetchRequest("b", "http://b/", (), 10.0)) == {
        "b": "the host has no address"
    }


def test_an_engine_that_moved_is_polled_at_its_new_address(asking: PagePoller) -> None:
    other = OK.replace(b"hello", b"other")

    with (
        raw_server(answer_all) as (base, _),
        raw_server(lambda connection, over: connection.sendall(other)) as (moved, _),
    ):
        assert told(asking, ask(base)) == {"a": b"hello"}
        assert told(asking, ask(moved)) == {"a": b"other"}


def test_a_forgotten_engine_gives_no_more_results(asking: PagePoller) -> None:
    def hang(connection: socket.socket, over: threading.Event) -> None:
        over.wait(20)

    with raw_server(hang) as (base, _):
        asking.submit(ask(base, deadline_seconds=0.2))
        asking.forget("a")
        threading.Timer(0.3, asking.wake).start()

        assert asking.poll() == []


def cannot_be_connected(base: str) -> FetchRequest:
    return FetchRequest(
        "poison", f"{base}/metrics", ((socket.AF_INET, ("127.0.0.1", 99_999)),), 10.0
    )


def cannot_be_requested(base: str) -> FetchRequest:
    return FetchRequest("poison", f"{base}/m\N{GREEK SMALL LETTER MU}", (address_of(base),), 10.0)


def cannot_be_read(base: str) -> FetchRequest:
    return ask(base, "poison")


@pytest.mark.parametrize(
    ("poison", "error"),
    [
        (cannot_be_connected, OverflowError),
        (cannot_be_requested, UnicodeEncodeError),
        (cannot_be_read, ZeroDivisionError),
    ],
)
def test_an_unexpected_error_of_one_server_is_reported_for_it_alone(
    asking: PagePoller,
    monkeypatch: pytest.MonkeyPatch,
    poison: Callable[[str], FetchRequest],
    error: type[Exception],
) -> None:
    class Poisoned(ResponseParser):
        def feed(self, data: bytes) -> bool:
            if b"poison" in data:
                raise ZeroDivisionError
            return super().feed(data)

    monkeypatch.setattr("disagg_exporter.http.client.page_poller.ResponseParser", Poisoned)
    bad = OK.replace(b"hello", b"poison")

    with (
        raw_server(answer_all) as (base, _),
        raw_server(lambda connection, over: connection.sendall(bad)) as (poisonous, _),
    ):
        assert told(asking, ask(base)) == {"a": b"hello"}
        for _ in range(2):
            got = told(asking, poison(poisonous), ask(base))

            assert got["a"] == b"hello"
            assert type(got["poison"]) is error
        asking.forget("a")
        assert told(asking, ask(base, "poison")) == {"poison": b"hello"}


def test_wake_ends_a_waiting_poll(asking: PagePoller) -> None:
    asking.wake()

    assert asking.poll() == []


def test_wake_after_close_does_not_write_to_reused_descriptors() -> None:
    """A closed descriptor's number may be in use again by then."""
    asking = PagePoller(1000)
    before = {link.name for link in Path("/proc/self/fd").iterdir()}
    asking.close()
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
    try:
        asking.wake()

        for other in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(other)
        assert {str(other) for other in others} & before
    finally:
        for other in others:
            os.close(other)
