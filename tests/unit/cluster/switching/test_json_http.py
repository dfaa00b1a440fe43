"""Answers of a real server that break off: of an error the status suffices, else it is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from disagg_cluster.switching.json_http import NoResponseError, call


@contextmanager
def breaking_off(
    status: str, *, silent: bool, headers: str = "Content-Length: 100"
) -> Iterator[str]:
    """A server that sends three bytes, usually of a hundred, and is then silent or closes."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 {status}\r\n{headers}\r\n\r\nbus".encode())
                if silent:
                    over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("silent", "text"),
    [(True, "HTTP 503: the page broke off: timed out"), (False, "HTTP 503: bus")],
)
def test_an_error_whose_page_breaks_off_keeps_its_status(silent: bool, text: str) -> None:
    with breaking_off("503 Service Unavailable", silent=silent) as url:
        answer = call("GET", url, timeout_seconds=0.2)

    assert answer.text() == text


def test_a_success_whose_page_does_not_arrive_is_no_answer() -> None:
    with (
        breaking_off("200 OK", silent=True) as url,
        pytest.raises(NoResponseError, match="timed out"),
    ):
        call("GET", url, timeout_seconds=0.2)


def test_a_redirect_is_not_followed_and_gets_no_key() -> None:
    with breaking_off("200 OK", silent=False) as other:
        whole = f"Location: {other}/\r\nContent-Length: 3"
        with breaking_off("302 Found", silent=False, headers=whole) as url:
            answer = call("GET", url, timeout_seconds=5.0, api_key="secret")
        # Nobody has called the other one: it serves one connection, and this is it.
        assert call("GET", other, timeout_seconds=5.0).ok

    assert answer.text() == "HTTP 302: bus"


@pytest.mark.parametrize("headers", ["", "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte_is_none_after_the_timeout(headers: str) -> None:
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(headers.encode() or b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(NoResponseError, match="timed out"):
                call("GET", url, timeout_seconds=0.2)
        finally:
            over.set()
            thread.join()
