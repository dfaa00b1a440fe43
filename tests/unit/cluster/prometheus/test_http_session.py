"""Sessions of commands: retries, deadlines, bounds, proxies, and secrecy."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import certifi
import pytest

from disagg_cluster.prometheus.http_client import TransportError
from disagg_cluster.prometheus.http_session import HttpResponse, HttpSession
from support.children import free_port
from support.raw_server import raw_server

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
FOREIGN = "http://192.0.2.1:9090"
"""In a network reserved for documentation: nothing answers there."""
SECRET = "Bearer s3cret"

Behave = Callable[[socket.socket, threading.Event], None]


def answering(*answers: bytes) -> Behave:
    """Give each connection its answer; the last one to all further ones."""
    left = list(answers)
    return lambda connection, _over: connection.sendall(left.pop(0) if len(left) > 1 else left[0])


def session(**kwargs: object) -> HttpSession:
    return HttpSession({"Authorization": SECRET}, **kwargs)  # type: ignore[arg-type]


def get(url: str, deadline_seconds: float = 10.0, **kwargs: object) -> HttpResponse:
    with closing(session(**kwargs)) as asking:
        return asking.get(url, deadline_seconds, 1000)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("first", [b"", BUSY, BUSY.replace(b"503", b"502")])
def test_transient_failures_are_retried_after_a_pause(first: bytes) -> None:
    pauses: list[float] = []
    with raw_server(answering(first, first, OK)) as (url, heads):
        assert get(url, sleep=pauses.append) == HttpResponse(200, b"up")
    assert len(heads) == 3
    assert pauses == [0.2, 0.4]


def test_attempts_end_and_the_last_answer_counts() -> None:
    with raw_server(answering(BUSY)) as (url, heads):
        assert get(url, sleep=lambda _: None, is_api=True) == HttpResponse(503, b"busy")
    assert len(heads) == 4


def test_permanent_failures_are_not_retried() -> None:
    with raw_server(answering(OK.replace(b"200", b"404"))) as (url, heads):
        assert get(url).status == 404
    assert len(heads) == 1
    with (
        raw_server(answering(b"SSH-2.0\r\n\r\n")) as (url, heads),
        pytest.raises(TransportError, match="the answer is not HTTP"),
    ):
        get(url)
    assert len(heads) == 1


def test_no_pause_goes_beyond_the_deadline() -> None:
    pauses: list[float] = []

    with pytest.raises(TransportError, match="Connection refused"):
        get(f"http://127.0.0.1:{free_port()}", 0.1, sleep=pauses.append)
    assert pauses == []


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n", OK[:-2]])
def test_a_dripping_server_has_the_same_deadline_as_a_hanging_one(begin: bytes) -> None:
    """Each byte would restart the timeout of `requests`."""

    def drip(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(begin.replace(b"Length: 2", b"Length: 900"))
        while not over.wait(0.05):
            connection.sendall(b"x")

    before = time.monotonic()
    with raw_server(drip) as (url, _), pytest.raises(TransportError, match=r"in 0\.4 s"):
        get(url, 0.4)
    assert time.monotonic() - before < 5


def test_connections_are_kept_and_each_request_has_the_whole_deadline() -> None:
    def twice(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(OK)
        connection.recv(65536)
        over.wait(0.6)
        connection.sendall(OK)

    with raw_server(twice) as (url, heads), closing(session()) as asking:
        asking.get(url, 0.5, 1000)
        assert asking.get(url, 10.0, 1000).body == b"up"
    assert len(heads) == 1


@pytest.mark.parametrize("head", [b"Content-Length: 2000\r\n\r\n", b"\r\n"])
def test_an_oversized_answer_is_an_error(head: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\n" + head + bytes(2000)
    with raw_server(answering(answer)) as (url, _), pytest.raises(TransportError, match="1000"):
        get(url)


def test_a_compressed_answer_is_not_unpacked() -> None:
    """None was requested; unpacked it might be a thousand times as large."""
    answer = OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    with raw_server(answering(answer)) as (url, heads):
        assert get(url).body == b"up"
    assert b"Accept-Encoding: identity" in heads[0]


def test_redirects_are_limited() -> None:
    # Declared closed, or a request may go to a connection that just ends, and be repeated.
    close = b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    again = b"HTTP/1.1 302 Found\r\nLocation: /again\r\n" + close
    with (
        raw_server(answering(again)) as (url, heads),
        pytest.raises(TransportError, match="redirects"),
    ):
        get(url, is_api=True)
    assert len(heads) == 11
    assert [SECRET.encode() in head for head in heads] == [True, *[False] * 10]


def test_remote_servers_are_reached_through_the_environments_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with raw_server(answering(OK)) as (proxy, heads):
        monkeypatch.setenv("HTTP_PROXY", proxy.replace("//", "//me:w0rd@"))
        monkeypatch.setenv("http_proxy", proxy.replace("//", "//me:w0rd@"))
        assert get(f"{FOREIGN}/api").body == b"up"
    assert heads[0].startswith(b"GET http://192.0.2.1:9090/api HTTP/1.1")
    assert b"Proxy-Authorization: Basic bWU6dzByZA==" in heads[0]


def test_https_uses_a_tunnel_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    with raw_server(answering(refusal)) as (proxy, heads):
        monkeypatch.setenv("https_proxy", proxy.replace("//", "//me:w0rd@"))
        with pytest.raises(TransportError) as caught:
            get(FOREIGN.replace("http", "https"))
    assert heads[0].startswith(b"CONNECT 192.0.2.1:9090 HTTP/1.")
    assert SECRET.encode() not in heads[0]
    assert "proxy" in str(caught.value)
    assert "w0rd" not in str(caught.value)


def test_no_proxy_lists_direct_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "192.0.2.1")

    with raw_server(answering(OK)) as (proxy, heads):
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(TransportError):
            get(FOREIGN, 0.2, pauses_seconds=())
    assert heads == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_local_requests_bypass_the_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")

    with raw_server(answering(OK)) as (url, _):
        assert get(url.replace("127.0.0.1", host)).body == b"up"


def test_netrc_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("default login me password w0rd\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))

    with raw_server(answering(OK)) as (url, heads):
        get(url)
    assert f"Authorization: {SECRET}\r\n".encode() in heads[0]


def test_only_the_contexts_authorities_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """`requests` adds the authorities of its own bundle to whatever it is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, certifi.where())
    with (
        raw_server(answering(b"no TLS"), reads_head=False) as (url, _),
        pytest.raises(TransportError),
    ):
        get(url.replace("http", "https"), tls=context)

    assert context.get_ca_certs() == []
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    "headers", [{"Authorization": "s3cret\nX: y"}, {"X": "s3cret\N{SNOWMAN}"}, {"X\n": "s3cret"}]
)
def test_a_header_that_cannot_be_sent_is_not_shown(headers: dict[str, str]) -> None:
    with (
        raw_server(answering(OK)) as (url, _),
        closing(HttpSession(headers)) as asking,
        pytest.raises(TransportError, match="header") as caught,
    ):
        asking.get(url, 10.0, 1000)
    assert "s3cret" not in str(caught.value)


def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with raw_server(answering(b"", OK)) as (url, _):
        get(url, sleep=lambda _: None)

    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("url", ["http://:9", "http://a b/", "localhost", "ftp://localhost"])
def test_an_invalid_address_is_reported(url: str) -> None:
    with pytest.raises(TransportError, match=r"is no host|unknown"):
        get(url)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_post_is_streamed_by_line_and_leaving_it_disconnects() -> None:
    hung_up = threading.Event()

    def stream(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(CHUNKED + b"5\r\none\nt\r\n")
        connection.sendall(b"3\r\nwo\n\r\n")
        # The request's body may arrive in a separate packet.
        while connection.recv(65536):
            pass
        hung_up.set()

    with raw_server(stream) as (url, heads), closing(session()) as asking:
        with asking.post(url, b"{}", 10.0, 1000) as answer:
            assert [next(answer.lines), next(answer.lines)] == [b"one", b"two"]
        assert hung_up.wait(10)

    assert heads[0].startswith(b"POST / ")
    assert b"Content-Type: application/json" in heads[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (CHUNKED + b"9\r\none\n", "cut off"),
        (CHUNKED + b"fff\r\n" + bytes(4095) + b"\r\n", "larger than 1000"),
    ],
)
def test_a_broken_or_endless_stream_is_reported(answer: bytes, why: str) -> None:
    with (
        raw_server(answering(answer)) as (url, _),
        closing(session()) as asking,
        pytest.raises(TransportError, match=why),
        asking.post(url, b"", 10.0, 1000) as told,
    ):
        list(told.lines)


def test_a_stream_that_stalls_ends_at_its_deadline() -> None:
    def stall(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(CHUNKED)
        over.wait()

    with (
        raw_server(stall) as (url, _),
        closing(session()) as asking,
        pytest.raises(TransportError, match=r"in 0\.3 s"),
        asking.post(url, b"", 0.3, 1000) as told,
    ):
        list(told.lines)


def test_the_body_of_a_refused_post_is_returned() -> None:
    body = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"
    with (
        raw_server(answering(body)) as (url, _),
        closing(session(is_api=True)) as asking,
        asking.post(url, b"", 10.0, 1000) as told,
    ):
        assert (told.status, told.body) == (400, b"no")
