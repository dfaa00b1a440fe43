import errno
import os
import socket
import threading
import time
from collections.abc import Callable

import pytest

from disagg_exporter.http.client.scrape import addresses_at_hand, fetch
from disagg_exporter.http.client.unreachable import EngineUnreachable
from support.raw_server import raw_server

PAGE = b"# TYPE x gauge\nx 1\n"
Behave = Callable[[socket.socket, threading.Event], None]


def answering(raw: bytes) -> Behave:
    return lambda connection, over: connection.sendall(raw)


def ok(*headers: bytes, body: bytes = PAGE) -> Behave:
    return answering(b"\r\n".join((b"HTTP/1.1 200 OK", *headers, b"", body)))


def fetched(behave: Behave, deadline_seconds: float = 5.0, max_bytes: int = 1000) -> bytes:
    with raw_server(behave) as (base, _):
        return fetch(f"{base}/metrics", deadline_seconds, max_bytes)


def refusal(behave: Behave, deadline_seconds: float = 5.0, max_bytes: int = 1000) -> str:
    """Return the reason why no page came, checked to be one line that names the address."""
    with raw_server(behave) as (base, _):
        with pytest.raises(EngineUnreachable) as caught:
            fetch(f"{base}/metrics", deadline_seconds, max_bytes)

        why = str(caught.value)
        assert why.startswith(f"{base}/metrics: ")
        assert why.isprintable()
        return why.removeprefix(f"{base}/metrics: ")


def drip(start: bytes, each: bytes) -> Behave:
    def behave(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(start)
        while not over.wait(0.02):
            connection.sendall(each)

    return behave


def stream(start: bytes, megabytes: int) -> Behave:
    def behave(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(start)
        for _ in range(megabytes):
            connection.sendall(b"x 1\n" * 262_144)

    return behave


def test_a_page_is_fetched_whole() -> None:
    chunked = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"

    assert fetched(ok(b"Content-Length: 19")) == PAGE
    assert fetched(ok()) == PAGE
    assert fetched(ok(b"Transfer-Encoding: chunked", body=chunked)) == b"hello world"
    assert fetched(ok(b"Content-Length: 19"), max_bytes=19) == PAGE


def test_the_engine_is_asked_for_plain_text_at_the_path_given() -> None:
    """OpenMetrics would rename the colons of every series."""
    with raw_server(ok()) as (base, heads):
        fetch(f"{base}/a/metrics?x=1", 5.0)

    assert heads[0].startswith(b"GET /a/metrics?x=1 HTTP/1.1\r\n")
    assert b"\r\nAccept: text/plain;version=0.0.4\r\n" in heads[0]


@pytest.mark.parametrize(
    "behave",
    [
        lambda connection, over: over.wait(10),
        drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", b"x"),
        drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silent", "drips its head", "drips its body", "drips chunks", "says continue for ever"],
)
def test_a_response_that_never_ends_is_given_up_at_the_deadline(behave: Behave) -> None:
    began = time.monotonic()

    why = refusal(behave, deadline_seconds=0.2)

    assert why == "no whole answer in 0.2 s"
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6400000\r\n",
    ],
    ids=["no length", "its length", "one chunk"],
)
def test_a_page_over_the_size_limit_is_refused(start: bytes) -> None:
    assert refusal(stream(start, 100), max_bytes=1_000_000) == (
        "the page is larger than 1000000 bytes"
    )


def test_a_stream_without_a_head_is_refused() -> None:
    assert refusal(stream(b"", 100)) == "the answer is not HTTP"


@pytest.mark.parametrize(
    ("behave", "expected"),
    [
        (lambda connection, over: None, "the connection was closed without an answer"),
        (ok(b"Content-Length: 500"), "the answer is cut off"),
        (ok(b"Transfer-Encoding: chunked", body=b"5\r\nhel"), "the answer is cut off"),
        (
            ok(b"Transfer-Encoding: chunked", body=b"-5\r\nhello"),
            "the answer is not HTTP",
        ),
        (answering(b"\x00\xff\xfe garbage\r\n\r\n"), "the answer is not HTTP"),
        (answering(b"HTTP/1.1 abc\r\n\r\n"), "the answer is not HTTP"),
        (answering(b"HTTP/1.1 404 Not\x1b Found\r\n\r\n"), "answers 404 instead of 200"),
        (answering(b"HTTP/1.1 503 x\r\n\r\n"), "answers 503 instead of 200"),
        (
            answering(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"),
            "answers 302 instead of 200",
        ),
    ],
)
def test_a_response_that_is_no_page_is_refused_with_a_one_line_reason(
    behave: Behave, expected: str
) -> None:
    assert refusal(behave) == expected


def test_an_engine_that_does_not_listen_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(EngineUnreachable, match="Connection refused"):
        fetch(f"http://127.0.0.1:{port}/metrics", 5.0)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "metrics",
        "file:///etc/hostname",
        "http:///metrics",
        "http://127.0.0.1:0/metrics",
        "http://127.0.0.1:99999/metrics",
        "http://[::1/metrics",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/a\r\nX: y",
        "http://h\u00f6st/",
    ],
)
def test_an_invalid_address_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(EngineUnreachable, match="not an address"):
        fetch(url, 5.0)


def test_a_host_name_that_cannot_exist_is_refused() -> None:
    with pytest.raises(EngineUnreachable, match="not a host name"):
        fetch(f"http://{'a' * 64}.invalid/", 5.0)


def test_an_address_on_a_missing_interface_is_refused() -> None:
    with pytest.raises(EngineUnreachable, match="nosuch0"):
        addresses_at_hand("http://[fe80::1%nosuch0]:8000/metrics")


def test_a_fetch_without_free_descriptors_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", full)

    with pytest.raises(EngineUnreachable, match=r"^http://127\.0\.0\.1:9/x: Too many open files$"):
        fetch("http://127.0.0.1:9/x", 1.0)
