from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.prometheus import http_config_file
from disagg_cluster.prometheus.credentials import Credentials
from disagg_cluster.prometheus.http_client import RefusedError, Target, UnansweredError, fetch
from disagg_exporter.http.server.authentication import OPEN, Access, Passwords
from support.certificates import authority, server_certificate, server_context, write_files
from support.children import free_port
from support.golden_server import serving
from support.raw_server import raw_server

NAMED = "tls_config: {ca_file: ca.pem}\n"


def context_of(*names: str, expired: bool = False) -> ssl.SSLContext:
    """A server's TLS context with a certificate for other names."""
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) if expired else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*names, not_after=long_ago).configure_cert(context)
    return context


def asking_for_certificates() -> ssl.SSLContext:
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(context)
    return context


def key(folder: Path, text: str = NAMED) -> Credentials:
    """The settings in a person's file; the files that it names are beside it."""
    write_files(folder, {"client.yml": text, "word": "secret\n"})
    client = authority().issue_cert("scraper.example")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    return http_config_file.load(folder / "client.yml")


def why(target: Target) -> str:
    """Return why there is no page, without the address."""
    with pytest.raises(RefusedError) as caught:
        fetch(target, "/metrics", 10.0)
    address, _, told = str(caught.value).partition("/metrics: ")
    assert address == target.url
    return told


def test_the_page_is_fetched_over_tls_from_a_trusted_server(tmp_path: Path) -> None:
    with serving(Access(tls=server_context())) as port:
        for host in ("127.0.0.1", "localhost"):
            page = fetch(Target(f"https://{host}:{port}", key(tmp_path)), "/metrics", 10.0)

            assert b"disagg_build_info{" in page


def test_the_certificate_of_ones_own_node_needs_no_authority_and_no_name() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = authority().issue_cert("gpu-7.example")
    own.configure_cert(context)
    pinned, other = own.cert_chain_pems[0].bytes(), server_certificate().cert_chain_pems[0].bytes()
    with serving(Access(tls=context)) as port:
        url = f"https://127.0.0.1:{port}"

        assert b"disagg_build_info{" in fetch(Target(url, pinned=pinned), "/metrics", 10.0)
        assert "not the one that web.yml names" in why(
            Target(url, pinned=other, pinned_by="web.yml")
        )


def test_a_certificate_that_the_pinned_one_signed_is_not_the_pinned_one() -> None:
    """One made with `openssl req -x509` may sign others, which are not us."""
    signer = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signer.issue_cert("127.0.0.1").configure_cert(context)
    with serving(Access(tls=context)) as port:
        target = Target(
            f"https://127.0.0.1:{port}", pinned=signer.cert_pem.bytes(), pinned_by="w.yml"
        )

        assert "not the one that w.yml names" in why(target)


def test_a_pinned_certificate_excludes_the_files_authorities(tmp_path: Path) -> None:
    """A person's file applies to all nodes; for our own node the certificate is known."""
    pinned = authority().issue_cert("gpu-7.example").cert_chain_pems[0].bytes()
    skipping = key(tmp_path, "tls_config: {ca_file: ca.pem, insecure_skip_verify: true}\n")
    with serving(Access(tls=server_context())) as port:
        told = why(Target(f"https://127.0.0.1:{port}", skipping, pinned, "web.yml"))

    assert "not the one that web.yml names" in told


def test_the_file_may_name_the_certificate_itself(tmp_path: Path) -> None:
    with serving(Access(tls=server_context())) as port:
        opened = key(tmp_path, "tls_config: {ca_file: cert.pem}\n")

        assert fetch(Target(f"https://127.0.0.1:{port}", opened), "/metrics", 10.0)


def test_an_untrusted_certificate_is_reported_with_a_remedy() -> None:
    with serving(Access(tls=server_context())) as port:
        told = why(Target(f"https://127.0.0.1:{port}"))

    assert told.startswith("its certificate is not trusted (")
    assert "`tls_config: ca_file:` in the file of --http-config" in told


@pytest.mark.parametrize(
    ("context", "told"),
    [
        (lambda: context_of("gpu-8.example"), "its certificate is for another name ("),
        (lambda: context_of("127.0.0.1", expired=True), "its certificate has expired"),
    ],
)
def test_certificate_problems_are_reported(
    context: Callable[[], ssl.SSLContext], told: str, tmp_path: Path
) -> None:
    with serving(Access(tls=context())) as port:
        assert why(Target(f"https://127.0.0.1:{port}", key(tmp_path))).startswith(told)


@pytest.mark.parametrize("more", ["server_name: gpu-8.example", "insecure_skip_verify: true"])
def test_the_file_may_set_or_disable_the_expected_name(more: str, tmp_path: Path) -> None:
    with serving(Access(tls=context_of("gpu-8.example"))) as port:
        opened = key(tmp_path, f"tls_config: {{ca_file: ca.pem, {more}}}\n")

        assert fetch(Target(f"https://127.0.0.1:{port}", opened), "/metrics", 10.0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_required_client_certificate_is_sent_or_reported_missing(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    context = asking_for_certificates()
    context.minimum_version = context.maximum_version = version
    with serving(Access(tls=context)) as port:
        url = f"https://127.0.0.1:{port}"
        ours = key(tmp_path, "tls_config: {ca_file: ca.pem, cert_file: client.pem}\n")

        assert fetch(Target(url, ours), "/metrics", 10.0)
        assert "`tls_config: cert_file: key_file:`" in why(Target(url, key(tmp_path)))


def test_a_rejected_client_certificate_is_reported(tmp_path: Path) -> None:
    access = Access(tls=asking_for_certificates(), client_names=frozenset({"other.example"}))
    with serving(access) as port:
        ours = key(tmp_path, "tls_config: {ca_file: ca.pem, cert_file: client.pem}\n")

        assert why(Target(f"https://127.0.0.1:{port}", ours)).startswith("it hung up (")


def test_a_required_password_is_sent_or_reported_missing(tmp_path: Path) -> None:
    basic = "basic_auth: {username: me, password_file: word}\n"
    with serving(Access(passwords=Passwords({"me": ""}, lambda word, _: word == b"secret"))) as at:
        url = f"http://127.0.0.1:{at}"

        assert fetch(Target(url, key(tmp_path, basic)), "/metrics", 10.0)
        assert why(Target(url)).startswith("it wants a name and a password (401); `basic_auth:")
        wrong = key(tmp_path, basic.replace("_file: word", ": wrong"))
        assert why(Target(url, wrong)) == f"it rejects the credentials in {wrong.source} (401)"


def test_the_wrong_protocol_is_reported(tmp_path: Path) -> None:
    with serving(Access(tls=server_context())) as encrypted, serving(OPEN) as plain:
        assert "is asked by https://" in why(Target(f"http://127.0.0.1:{encrypted}"))
        told = why(Target(f"https://127.0.0.1:{plain}", key(tmp_path)))
        assert told.startswith("TLS does not come about (WRONG_VERSION_NUMBER)")
        assert "is asked by http://" in told


def test_a_closed_port_is_unanswered() -> None:
    with pytest.raises(UnansweredError, match="/metrics: Connection refused"):
        fetch(Target(f"https://127.0.0.1:{free_port()}"), "/metrics", 10.0)


def test_a_plain_disconnect_is_unanswered() -> None:
    """An ending daemon does so, and so does any program that held its port."""
    with (
        raw_server(lambda _connection, _over: None) as (url, _),
        pytest.raises(UnansweredError, match="closed without an answer"),
    ):
        fetch(Target(url), "/metrics", 10.0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_silent_server_times_out(scheme: str) -> None:
    with (
        raw_server(lambda _connection, over: over.wait(10)) as (url, _),
        pytest.raises(UnansweredError, match=r"no whole answer in 0\.3 s"),
    ):
        fetch(Target(url.replace("http", scheme)), "/metrics", 0.3)


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        (b"Content-Length: 9\r\n\r\nup", "the answer is cut off"),
        (b"\r\n" + bytes(9 << 20), "the page is larger than 8388608 bytes"),
    ],
)
def test_a_truncated_or_endless_page_is_an_error(rest: bytes, told: str) -> None:
    def answer(connection: socket.socket, _over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + rest)

    with raw_server(answer) as (url, _):
        assert why(Target(url)) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tls_config: {ca_file: gone.pem}\n", "tls_config.ca_file: cannot be read"),
        ("tls_config: {ca_file: word}\n", "tls_config.ca_file: does not have the expected"),
        ("tls_config: {cert_file: ca.pem}\n", "tls_config.cert_file: does not have the expected"),
    ],
)
def test_unusable_files_are_reported(text: str, told: str, tmp_path: Path) -> None:
    with serving(Access(tls=server_context())) as port, pytest.raises(ConfigError, match=told):
        fetch(Target(f"https://127.0.0.1:{port}", key(tmp_path, text)), "/metrics", 10.0)
