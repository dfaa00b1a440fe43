from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import trustme

from disagg_exporter.http.server.authentication import OPEN, Access, Passwords
from disagg_exporter.http.tls_socket import plain_name
from support.certificates import authority, client_context, server_context
from support.golden_server import golden_server, serving
from support.running_node import wait_for


def get(port: int, context: ssl.SSLContext, path: str = "/healthz") -> http.client.HTTPResponse:
    """One request on a connection of its own; the answer is read whole."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer


def verifying(*names: str) -> Access:
    """The server takes clients with a certificate, and of those the ones with these names."""
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(context)
    return Access(tls=context, client_names=frozenset(names))


@contextlib.contextmanager
def refusing(access: Access, client_seconds: float = 5.0, **refused: int) -> Iterator[int]:
    """Serve under conditions, then check how many clients were refused for each reason."""
    server = golden_server(access, client_seconds=client_seconds)
    with contextlib.closing(server):
        yield server.start().port
        expected = sum(refused.values())
        wait_for(lambda: sum(server.refusals().values()) >= expected, "refusals", 20.0)
    assert {name: count for name, count in server.refusals().items() if count} == refused


def test_the_page_is_served_over_tls() -> None:
    access = Access(tls=server_context())
    with serving(lambda: access) as port:
        assert get(port, client_context(), "/metrics").status == 200
        assert get(port, client_context(), "/nothing").status == 404


def test_a_plain_request_to_a_tls_port_is_answered_to_use_https() -> None:
    with (
        refusing(Access(tls=server_context()), tls=1) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"use https" in answer


def test_clients_with_an_unfinished_handshake_delay_no_other_and_are_disconnected() -> None:
    with (
        refusing(Access(tls=server_context()), client_seconds=1.0, timeout=1, tls=2) as port,
        contextlib.ExitStack() as stack,
    ):
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(3)
        ]
        slow[0].sendall(b"\x16\x03\x01")
        slow[1].sendall(b"\x16")

        assert get(port, client_context()).status == 200
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(4096) == b""


def test_junk_after_the_first_byte_of_a_handshake_ends_the_connection_alone() -> None:
    with refusing(Access(tls=server_context()), tls=1) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"\x16" + b"junk" * 1000)
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass

        assert get(port, client_context()).status == 200


def test_a_client_without_a_required_certificate_is_refused() -> None:
    with refusing(verifying(), tls=1) as port:
        assert get(port, client_context("scraper.example")).status == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            get(port, client_context())


@pytest.mark.parametrize(
    "names", [("scraper.example",), ("192.0.2.7",), ("::1",), ("ops@example.org",)]
)
def test_a_certificate_for_an_allowed_name_is_accepted(names: tuple[str, ...]) -> None:
    access = verifying("scraper.example", "192.0.2.7", plain_name("0:0:0:0:0:0:0:1"), *names)
    with serving(lambda: access) as port:
        assert get(port, client_context(*names)).status == 200


def test_a_valid_certificate_for_another_name_is_refused() -> None:
    with (
        refusing(verifying("scraper.example"), tls=1) as port,
        pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)),
    ):
        get(port, client_context("elsewhere.example"))


@pytest.mark.parametrize("kind", ["wrong authority", "expired"])
def test_an_untrusted_client_certificate_is_refused_and_logged(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = datetime(2020, 1, 1, tzinfo=UTC) if kind == "expired" else None
    signer = trustme.CA() if kind == "wrong authority" else authority()
    context = client_context()
    signer.issue_cert("scraper.example", not_after=old).configure_cert(context)
    with refusing(verifying(), tls=1) as port:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            get(port, context)
        assert get(port, client_context("scraper.example")).status == 200

    said = "certificate has expired" if kind == "expired" else "unable to get local issuer"
    assert re.search(f"127.0.0.1 is refused: TLS: .*({said}|self.signed)", caplog.text)


def test_closing_ends_encrypted_connections_at_once() -> None:
    access = Access(tls=server_context())
    with contextlib.ExitStack() as stack:
        with serving(lambda: access, client_seconds=60) as port:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=20, context=client_context()
            )
            stack.enter_context(contextlib.closing(connection))
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            began = time.monotonic()

        assert time.monotonic() - began < 15


def test_connections_are_closed_when_the_tls_settings_change() -> None:
    access = [OPEN]
    with serving(lambda: access[0]) as port:
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        plain.request("GET", "/metrics")
        plain.getresponse().read()
        access[0] = Access(tls=server_context())
        plain.request("GET", "/metrics")
        with contextlib.closing(plain), pytest.raises(ConnectionError):
            plain.getresponse()

        secure = http.client.HTTPSConnection("127.0.0.1", port, context=client_context())
        secure.request("GET", "/metrics")
        secure.getresponse().read()
        access[0] = verifying("somebody.example")
        with contextlib.closing(secure):
            secure.request("GET", "/metrics")
            answer = secure.getresponse()
            answer.read()
        assert answer.headers["Connection"] == "close"


def test_new_access_rules_apply_to_open_connections() -> None:
    """Revoked access must not survive on a kept connection."""
    now = [OPEN]
    with serving(lambda: now[0]) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            statuses = []
            for access in (OPEN, Access(passwords=Passwords({"a": "b"}, lambda *_: True)), OPEN):
                now[0] = access
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)

    assert statuses == [200, 401, 200]


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/nothing"])
def test_no_page_is_open_when_a_password_is_required(path: str) -> None:
    access = Access(passwords=Passwords({"a": "b"}, lambda *_: False))
    with serving(lambda: access) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path)

            assert connection.getresponse().status == 401


def test_configured_headers_are_on_every_response_and_replace_the_defaults() -> None:
    headers = (("X-Frame-Options", "sameorigin"), ("Content-Security-Policy", "default-src x"))
    with serving(lambda: Access(headers=headers)) as port:
        for path in ("/metrics", "/", "/nothing"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            with contextlib.closing(connection):
                connection.request("GET", path)
                told = connection.getresponse().headers

                assert told.get_all("X-Frame-Options") == ["sameorigin"]
                assert told.get_all("Content-Security-Policy") == ["default-src x"]
