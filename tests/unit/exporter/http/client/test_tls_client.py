"""Pages of servers that speak TLS: whom to trust, and what hostile ones can do to the poller."""

from __future__ import annotations

import datetime
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from disagg_exporter.http.client.exchange import FetchRequest
from disagg_exporter.http.client.page_poller import PagePoller
from disagg_exporter.http.client.scrape import fetch, look_up
from disagg_exporter.http.client.tls_client import ClientTls
from disagg_exporter.http.client.unreachable import EngineUnreachable
from disagg_exporter.http.tls_errors import TlsError, TlsFault, Trust, Verified
from support.certificates import authority, server_certificate, server_context, write_files
from support.page_server import page_server
from support.raw_server import raw_server

PAGE = b"# TYPE x gauge\nx 1\n"
Behave = Callable[[socket.socket, threading.Event], None]


def page(_path: str) -> bytes:
    return PAGE


def pem(certificate: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


def ca(tmp_path: Path, **more: object) -> Trust:
    write_files(tmp_path)
    return Trust(ca_file=tmp_path / "ca.pem", **more)  # type: ignore[arg-type] # as a test says


def context_of(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def got(trust: Trust, context: ssl.SSLContext, path: str = "/metrics") -> bytes:
    with page_server(page, context) as base:
        return fetch(base + path, 10.0, tls=ClientTls(trust))


def fault(trust: Trust, context: ssl.SSLContext) -> TlsFault | None:
    with pytest.raises(EngineUnreachable) as caught:
        got(trust, context)
    assert str(caught.value).isprintable()
    return caught.value.tls_fault


# Who is believed


def test_a_server_certificate_signed_by_the_authority_is_trusted(tmp_path: Path) -> None:
    assert got(ca(tmp_path), server_context()) == PAGE


def test_a_server_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    stranger = trustme.CA().issue_cert("127.0.0.1")

    assert fault(ca(tmp_path), context_of(stranger)) is TlsFault.UNTRUSTED


def test_a_certificate_for_another_name_is_refused_unless_that_name_is_configured(
    tmp_path: Path,
) -> None:
    named = context_of(authority().issue_cert("gpu-7.example"))

    assert fault(ca(tmp_path), named) is TlsFault.OTHER_NAME
    assert got(ca(tmp_path, server_name="gpu-7.example"), named) == PAGE


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expired = context_of(authority().issue_cert("127.0.0.1", not_after=long_ago))

    assert fault(ca(tmp_path), expired) is TlsFault.EXPIRED


def test_a_pinned_certificate_is_trusted_under_any_name() -> None:
    own = trustme.CA().issue_cert("inference.example")

    assert got(Trust(pinned=(pem(own),)), context_of(own)) == PAGE


def test_any_of_several_pinned_certificates_is_trusted() -> None:
    old, new = server_certificate("old"), server_certificate("new")
    pins = Trust(pinned=(pem(old), pem(new)))

    assert got(pins, context_of(old)) == got(pins, context_of(new)) == PAGE


def test_a_certificate_signed_by_a_pinned_one_is_refused() -> None:
    root = trustme.CA()
    middle = root.create_child_ca()
    leaf = middle.issue_cert("127.0.0.1")
    pinned = Trust(pinned=(middle.cert_pem.bytes(),))

    assert fault(pinned, context_of(leaf)) is TlsFault.NOT_PINNED


def test_a_certificate_other_than_the_pinned_one_is_refused() -> None:
    """Whoever signed it: a pin trusts no authority."""
    authority = trustme.CA()
    pinned = Trust(pinned=(pem(authority.issue_cert("a")),))

    renewed = fault(pinned, context_of(authority.issue_cert("a")))
    stranger = fault(pinned, context_of(trustme.CA().issue_cert("a")))

    assert (renewed, stranger) == (TlsFault.NOT_PINNED, TlsFault.NOT_PINNED)


def test_any_server_is_trusted_only_if_insecure_is_set() -> None:
    stranger = context_of(trustme.CA().issue_cert("x"))

    assert got(Trust(insecure=True), stranger) == PAGE
    with pytest.raises(TlsError) as caught:
        ClientTls(Trust())
    assert caught.value.fault is TlsFault.NO_TRUST


def test_the_trust_reports_how_servers_are_verified(tmp_path: Path) -> None:
    pins = (pem(server_certificate()),)

    assert Trust(insecure=True).verified is Verified.INSECURE
    assert Trust(insecure=True, pinned=pins).verified is Verified.PINNED
    assert ca(tmp_path, insecure=True, pinned=pins).verified is Verified.CA


@pytest.mark.parametrize("name", ["", ".a", "a" * 300, "x." * 200, "\u00fc" * 70, "a\0b"])
def test_a_name_impossible_in_a_certificate_is_a_fault_of_that_server(name: str) -> None:
    client = ClientTls(Trust(insecure=True, server_name=name))

    with socket.socket() as sock, pytest.raises(TlsError) as caught:
        client.channel(sock, name)
    assert caught.value.fault is TlsFault.OTHER_NAME
    assert str(caught.value).isprintable()


def test_a_client_certificate_is_sent_to_a_server_that_requires_one(tmp_path: Path) -> None:
    wants = server_context()
    authority().configure_trust(wants)
    wants.verify_mode = ssl.CERT_REQUIRED
    trust = ca(tmp_path)

    assert fault(trust, wants) is TlsFault.WANTS_OURS
    ours = Trust(trust.ca_file, cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem")
    assert got(ours, wants) == PAGE


@pytest.mark.parametrize(
    "trust",
    [
        Trust(ca_file=Path("nowhere.pem")),
        Trust(ca_file=Path(__file__)),
        Trust(pinned=(b"no certificate",)),
        Trust(insecure=True, cert_file=Path("nowhere.pem")),
    ],
)
def test_an_unusable_trust_file_is_reported_at_once(trust: Trust) -> None:
    with pytest.raises(TlsError) as caught:
        ClientTls(trust)

    assert caught.value.fault is TlsFault.UNREADABLE
    assert str(caught.value).isprintable()


# Servers of another protocol


def test_a_server_without_tls_is_reported_as_no_tls() -> None:
    with page_server(page) as base:
        secure = base.replace("http:", "https:") + "/metrics"
        with pytest.raises(EngineUnreachable) as caught:
            fetch(secure, 10.0, tls=ClientTls(Trust(insecure=True)))

    assert caught.value.tls_fault is TlsFault.NO_TLS


def test_a_tls_alert_to_a_plain_request_is_reported_as_tls_wanted() -> None:
    """OpenSSL's own server sends such an alert."""
    alert = bytes((0x15, 3, 1, 0, 2, 2, 70))
    with (
        raw_server(lambda connection, _: connection.sendall(alert)) as (base, _),
        pytest.raises(EngineUnreachable) as caught,
    ):
        fetch(f"{base}/metrics", 10.0)

    assert caught.value.tls_fault is TlsFault.TLS_WANTED


def test_a_server_that_closes_on_a_plain_request_is_reported_as_hung_up() -> None:
    """As Python's servers do, and so vLLM's and SGLang's."""
    with (
        raw_server(lambda _connection, _over: None) as (base, _),
        pytest.raises(EngineUnreachable) as caught,
    ):
        fetch(f"{base}/metrics", 10.0)

    assert caught.value.tls_fault is TlsFault.HUNG_UP


def test_nothing_is_sent_in_the_clear_to_an_https_address() -> None:
    with raw_server(lambda _connection, _over: None) as (base, heads):
        with pytest.raises(EngineUnreachable) as caught:
            fetch(base.replace("http:", "https:"), 10.0)
        assert heads == []

    assert caught.value.tls_fault is TlsFault.NO_TRUST


# Hostile servers


def stingy(connection: socket.socket, over: threading.Event) -> None:
    over.wait(30)


def garbage(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"\xff" * 65536)
    over.wait(30)


def drips(connection: socket.socket, over: threading.Event) -> None:
    """A handshake record that is never whole."""
    connection.sendall(b"\x16\x03\x03\x40\x00")
    while not over.wait(0.02):
        connection.sendall(b"\x02")


def never_ends(connection: socket.socket, over: threading.Event) -> None:
    """Records of a handshake message that is said to be as long as one may be."""
    record = b"\x16\x03\x03" + struct.pack(">H", 16384)
    connection.sendall(record + b"\x02\xff\xff\xff" + b"\0" * 16380)
    while not over.is_set():
        connection.sendall(record + b"\0" * 16384)


HOSTILE = {"silence": stingy, "garbage": garbage, "drips": drips, "endless": never_ends}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_handshake_ends_at_its_deadline_and_delays_no_other(what: str) -> None:
    with (
        raw_server(HOSTILE[what], reads_head=False) as (hostile, _),
        page_server(page, server_context()) as honest,
        closing(PagePoller(1000)) as asking,
    ):
        tls = ClientTls(Trust(insecure=True))
        bad = hostile.replace("http:", "https:") + "/metrics"
        asking.submit(FetchRequest("bad", bad, look_up(bad), 0.3, tls=tls))
        url, ended = f"{honest}/metrics", set[str]()
        asking.submit(FetchRequest("good", url, look_up(url), 10.0, tls=tls))
        while "bad" not in ended:
            for each in asking.poll():
                ended.add(each.request.key)
                if each.request.key == "good":
                    assert each.page == PAGE
                    asking.submit(FetchRequest("good", url, look_up(url), 10.0, tls=tls))
                else:
                    assert isinstance(each.page, EngineUnreachable)


def test_a_handshake_is_subject_to_the_byte_limit() -> None:
    sent = 0

    def floods(connection: socket.socket, over: threading.Event) -> None:
        nonlocal sent
        record = b"\x16\x03\x03" + struct.pack(">H", 16384)
        head = record + b"\x02\xff\xff\xff" + b"\0" * 16380
        while not over.is_set():
            sent += connection.send(head)
            head = record + b"\0" * 16384

    with (
        raw_server(floods, reads_head=False) as (base, _),
        pytest.raises(EngineUnreachable) as caught,
    ):
        fetch(base.replace("http:", "https:"), 60.0, tls=ClientTls(Trust(insecure=True)))

    assert caught.value.tls_fault is TlsFault.FAILED
    # What the socket's buffers hold is on top.
    assert sent < 64 * 1024 * 1024


def small_records(connection: socket.socket, over: threading.Event, size: int) -> None:
    with server_context().wrap_socket(connection, server_side=True) as tls:
        tls.recv(65536)
        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n")
        for _ in range(4_000_000 // size):
            tls.send(b"x" * size)


def test_a_page_in_one_byte_tls_records_is_given_up() -> None:
    """Each costs as much work as one of 16 KiB."""
    with (
        raw_server(lambda c, o: small_records(c, o, 1), reads_head=False) as (base, _),
        pytest.raises(EngineUnreachable) as caught,
    ):
        fetch(
            base.replace("http:", "https:"),
            60.0,
            max_bytes=5_000_000,
            tls=ClientTls(Trust(insecure=True)),
        )

    assert caught.value.tls_fault is TlsFault.FAILED


def test_a_large_page_in_tls_records_of_usual_size_is_read_whole() -> None:
    with raw_server(lambda c, o: small_records(c, o, 4000), reads_head=False) as (base, _):
        url = base.replace("http:", "https:")
        page = fetch(url, 60.0, max_bytes=5_000_000, tls=ClientTls(Trust(insecure=True)))

    assert len(page) == 4_000_000


# Connections


def test_a_kept_connection_is_replaced_when_the_trust_changes() -> None:
    shaken = 0
    context = server_context()

    def count(*_: object) -> None:
        nonlocal shaken
        shaken += 1

    context.sni_callback = count  # for any name at all
    with page_server(page, context) as base, closing(PagePoller(1000)) as asking:
        base = base.replace("127.0.0.1", "localhost")
        url = f"{base}/metrics"

        def ask(tls: ClientTls) -> bytes | EngineUnreachable:
            asking.submit(FetchRequest("a", url, look_up(url), 10.0, tls=tls))
            (told,) = asking.poll()
            return told.page

        first, second = ClientTls(Trust(insecure=True)), ClientTls(Trust(insecure=True))
        assert [ask(first), ask(first), ask(first)] == [PAGE] * 3
        assert shaken == 1
        assert ask(second) == PAGE
        assert shaken == 2


def answers_once(connection: socket.socket, _over: threading.Event) -> None:
    """As a server does whose patience with a connection has run out: without a word."""
    with server_context().wrap_socket(connection, server_side=True) as tls:
        tls.recv(65536)
        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage")


def test_a_kept_connection_closed_by_the_server_is_reopened() -> None:
    with (
        raw_server(answers_once, reads_head=False) as (base, _),
        closing(PagePoller(1000)) as asking,
    ):
        tls, url = ClientTls(Trust(insecure=True)), base.replace("http:", "https:")
        for _ in range(3):
            asking.submit(FetchRequest("a", url, look_up(url), 10.0, tls=tls))
            (told,) = asking.poll()
            assert told.page == b"page"


def test_a_channel_in_its_handshake_waits_for_reading() -> None:
    """Otherwise it would be polled for writing without end while it has to read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = ClientTls(Trust(insecure=True)).channel(ours, "localhost")
        with pytest.raises(BlockingIOError):
            channel.send(b"GET / HTTP/1.1\r\n\r\n")

        assert channel.awaits(b"GET / HTTP/1.1\r\n\r\n") == selectors.EVENT_READ
