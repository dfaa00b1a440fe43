import contextlib
import gzip
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from disagg_exporter.http.listen import ListenAddress, ListenError
from disagg_exporter.http.server.authentication import OPEN, Access
from disagg_exporter.http.server.node_site import node_site
from disagg_exporter.http.server.server import MetricsServer
from support.children import descriptors
from support.golden_server import golden_server, serving
from support.snapshots import golden_snapshot

LOCAL = ListenAddress("127.0.0.1", 0)


@contextlib.contextmanager
def client(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        yield connection


def http_client(port: int, address: str) -> contextlib.closing[http.client.HTTPConnection]:
    """A client of another address of this machine."""
    source = (address, 0)
    return contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=source)
    )


def raw(port: int, request: bytes) -> bytes:
    """Return all that comes back until the server closes, in whatever manner."""
    parts: list[bytes] = []
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(request)
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_one_connection_serves_many_requests() -> None:
    with serving() as port, client(port) as connection:
        for path in ("/metrics", "/healthz", "/readyz", "/", "/metrics"):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()

            assert (answer.status, answer.version, len(body) > 0) == (200, 11, True)
            assert answer.headers["Content-Length"] == str(len(body))
            assert answer.headers["Server"] == "disagg-node"


def test_a_compressed_page_is_the_page() -> None:
    with serving() as port, client(port) as connection:
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        packed = connection.getresponse()
        body = packed.read()
        connection.request("GET", "/metrics")

        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == connection.getresponse().read()


def test_a_head_request_gets_the_length_and_no_body() -> None:
    with serving() as port, client(port) as connection:
        connection.request("GET", "/metrics")
        whole = connection.getresponse().read()
        connection.request("HEAD", "/metrics")
        answer = connection.getresponse()

        assert (answer.status, answer.headers["Content-Length"]) == (200, str(len(whole)))
        assert answer.read() == b""
        connection.request("GET", "/healthz")  # nothing was left over on the connection
        assert connection.getresponse().read() == b"ok\n"


def test_an_unknown_path_gives_404_and_keeps_the_connection() -> None:
    with serving() as port, client(port) as connection:
        connection.request("GET", "/nothing")
        answer = connection.getresponse()
        answer.read()
        connection.request("GET", "/healthz")

        assert (answer.status, connection.getresponse().status) == (404, 200)


def test_a_request_with_a_body_is_refused_and_the_body_not_parsed_as_a_request() -> None:
    with serving() as port:
        answer = raw(
            port,
            b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 27\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\n\r\n\r\n",
        )

    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET, HEAD\r\n" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"BREW /metrics HTTP/1.1\r\n\r\n", b"501"),
        (b"GET /metrics HTTP/x\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"405"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFF\r\n", b"405"),
        (b"GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\nHost: x\n\n", b"400"),
    ],
)
def test_an_invalid_request_is_answered_and_the_connection_closed(
    request_bytes: bytes, status: bytes
) -> None:
    with serving() as port:
        assert status in raw(port, request_bytes).split(b"\r\n", 1)[0]

        assert b" 200 " in raw(port, b"GET /healthz HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize("start", [b"", b"GET /metrics HT"], ids=["silent", "stops in the middle"])
def test_a_client_without_a_complete_request_is_disconnected(start: bytes) -> None:
    with serving(client_seconds=0.1) as port:
        assert raw(port, start) == b""


def test_a_client_that_sends_byte_by_byte_is_disconnected() -> None:
    """A timeout restarted by every byte would keep it connected for ever."""
    with (
        serving(client_seconds=0.2) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 20 and not readable(connection, 0.02):
                connection.sendall(b"x")

        assert time.monotonic() - began < 15


def readable(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side said or closed something within so long."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def test_a_new_client_displaces_the_longest_idle_one_of_its_address() -> None:
    with serving(connections=4) as port, contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(client(port)) for _ in range(3))
        for connection in (first, second, first, third):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"

        first.request("GET", "/healthz")
        assert first.getresponse().read() == b"ok\n"
        assert second.sock is not None
        assert second.sock.recv(1) == b""


def test_clients_of_one_address_displace_none_of_another() -> None:
    with (
        serving(connections=4) as port,
        http_client(port, "127.0.0.9") as other,
        contextlib.ExitStack() as stack,
    ):
        other.request("GET", "/healthz")
        assert other.getresponse().read() == b"ok\n"
        for _ in range(8):
            connection = stack.enter_context(client(port))
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"

        carrier = other.sock
        other.request("GET", "/healthz")
        assert (other.getresponse().read(), other.sock) == (b"ok\n", carrier)


def test_clients_without_a_complete_request_do_not_block_others() -> None:
    with serving(connections=2) as port, contextlib.ExitStack() as stack:
        for start in (b"", b"GET /metrics HT") * 200:
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(start)

        assert raw(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")


def test_refusals_are_counted_by_reason_and_logged_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = golden_server(client_seconds=0.5)
    with contextlib.closing(server):
        port = server.start().port
        raw(port, b"")
        raw(port, b"GET / HTTP/1.1\r\nHost : x\r\n\r\n")
        raw(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost : x\r\n\r\n")
        raw(port, b"GET /" + b"a" * 20_000)
        counted = server.refusals()

    assert counted == {
        "displaced": 0,
        "no_thread": 0,
        "timeout": 1,
        "too_large": 1,
        "malformed": 2,
        "tls": 0,
        "unauthorized": 0,
        "rate_limited": 0,
        "too_many_guesses": 0,
    }
    said = [line for line in caplog.messages if "127.0.0.1 is refused: " in line]
    assert len(said) == len(set(said)) == 3


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/metrics/../../etc/passwd",
        "/metrics%00.txt",
        "file:///etc/passwd",
    ],
)
def test_no_path_leads_to_a_file(path: str) -> None:
    with serving() as port:
        answer = raw(port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    assert answer.split(b" ")[1] in (b"400", b"404")
    assert b"root:" not in answer


def test_an_unexpected_error_ends_one_connection_and_is_reported() -> None:
    fails = [True]

    def access() -> Access:
        if fails:
            raise fails.pop() and LookupError("never foreseen")
        return OPEN

    server = golden_server(access)
    with contextlib.closing(server):
        port = server.start().port
        raw(port, b"GET /healthz HTTP/1.0\r\n\r\n")

        assert raw(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")
        (status,) = server.collectors()
    assert (status.collector, status.success, status.unexpected_failures) == ("http", True, 1)


def test_pipelined_requests_are_answered_up_to_a_limit() -> None:
    with serving() as port:
        answers = raw(port, b"GET /healthz HTTP/1.1\r\n\r\n" * 1000)

    assert 2 <= answers.count(b"HTTP/1.1 200 OK\r\n") <= 10
    assert answers.count(b"Connection: close\r\n") == 1


def test_clients_that_disconnect_early_do_not_disturb_the_server() -> None:
    with serving() as port:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 20)

        assert b" 200 " in raw(port, b"GET /healthz HTTP/1.0\r\n\r\n")


def test_closing_ends_open_connections_at_once() -> None:
    with contextlib.ExitStack() as stack:
        with serving(client_seconds=60) as port:
            connection = stack.enter_context(client(port))
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            began = time.monotonic()

        assert time.monotonic() - began < 15


def test_a_port_in_use_is_refused_and_closing_after_is_harmless() -> None:
    with serving() as port:
        second = MetricsServer(
            ListenAddress("127.0.0.1", port),
            node_site(golden_snapshot, lambda: "", lambda: 0.0),
        )
        with pytest.raises(ListenError, match="the port is taken"):
            second.start()
        second.close()


def test_a_closed_server_leaves_no_thread_descriptor_or_open_port() -> None:
    site = node_site(lambda: None, lambda: "", lambda: 0.0)
    before = descriptors()
    with contextlib.closing(MetricsServer(LOCAL, site)) as server:
        port = server.start().port
        with client(port) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            assert any(thread.name == "metrics" for thread in threading.enumerate())
            assert len(descriptors() - before) >= 3

            server.close()

            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=20).close()

    assert all(thread.name != "metrics" for thread in threading.enumerate())
    assert descriptors() <= before
