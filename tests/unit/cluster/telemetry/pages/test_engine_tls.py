"""How engines that serve TLS are verified, as their certificates and processes change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disagg_cluster.config import EngineTls
from disagg_cluster.host.processes.procfs import start_ticks
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsClients, EngineTlsServer
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.http.client.unreachable import EngineUnreachable
from disagg_exporter.http.tls_errors import TlsError, TlsFault, Verified
from support.certificates import server_certificate, server_context, write_files
from support.page_server import page_server

HERE = "https://127.0.0.1:8000"
ME = os.getpid()


def clients(server: EngineTlsServer) -> EngineTlsClients:
    return EngineTlsClients(lambda _engine: server)


def server(file: Path, **more: object) -> EngineTlsServer:
    return EngineTlsServer(EngineTls(**more), str(file), ME, start_ticks(ME))  # type: ignore[arg-type]


def fault(server: EngineTlsServer, url: str = HERE) -> TlsFault:
    with pytest.raises(TlsError) as caught:
        clients(server).client("e", url)
    assert str(caught.value).isprintable()
    return caught.value.fault


def write(file: Path, name: str) -> bytes:
    pem = b"".join(blob.bytes() for blob in server_certificate(name).cert_chain_pems)
    file.write_bytes(pem)
    return pem


def test_an_engine_is_verified_by_the_certificate_in_its_own_file(tmp_path: Path) -> None:
    write_files(tmp_path)

    client = clients(server(tmp_path / "cert.pem")).client("e", HERE)

    assert client.verified is Verified.PINNED
    with page_server(lambda _path: b"page", server_context()) as base:
        assert fetch(base, 10.0, tls=client) == b"page"


def test_a_foreign_server_on_the_port_of_an_engine_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "cert.pem", "other")
    client = clients(server(tmp_path / "cert.pem")).client("e", HERE)

    with (
        page_server(lambda _path: b"page", server_context()) as base,
        pytest.raises(EngineUnreachable) as caught,
    ):
        fetch(base, 10.0, tls=client)
    assert caught.value.tls_fault in (TlsFault.NOT_PINNED, TlsFault.UNTRUSTED)


def test_a_renewed_certificate_and_its_predecessor_are_both_accepted(tmp_path: Path) -> None:
    """A server may load a renewed certificate at once, later, or never."""
    file = tmp_path / "cert.pem"
    write(file, "other")
    known = clients(server(file))
    first = known.client("e", HERE)
    assert known.client("e", HERE) is first

    write_files(tmp_path)
    renewed = known.client("e", HERE)

    assert renewed is not first
    with page_server(lambda _path: b"page", server_context()) as base:
        assert fetch(base, 10.0, tls=renewed) == b"page"
    write(file, "third")
    with page_server(lambda _path: b"page", server_context()) as base:
        assert fetch(base, 10.0, tls=known.client("e", HERE)) == b"page"


def test_a_truncated_or_missing_certificate_file_keeps_the_last_client(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    write_files(tmp_path)
    known = clients(server(file))
    first = known.client("e", HERE)

    file.write_bytes(file.read_bytes()[:100])
    assert known.client("e", HERE) is first
    file.unlink()
    assert known.client("e", HERE) is first


@pytest.mark.parametrize("garbage", [b"AAAA", b"not!base64", b"\xff\xfe", b""])
def test_an_invalid_renewed_certificate_keeps_the_last_valid_one(
    garbage: bytes, tmp_path: Path
) -> None:
    """Both while the file is invalid and once it is valid again."""
    write_files(tmp_path)
    file = tmp_path / "cert.pem"
    good = file.read_bytes()
    known = clients(server(file))
    known.client("e", HERE)

    with page_server(lambda _path: b"page", server_context()) as base:
        for renewed in (
            b"-----BEGIN CERTIFICATE-----\n" + garbage + b"\n-----END CERTIFICATE-----\n",
            good,
        ):
            file.write_bytes(renewed)
            assert fetch(base, 10.0, tls=known.client("e", HERE)) == b"page"


def test_the_certificate_of_an_earlier_process_is_not_trusted_for_the_next(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    write_files(tmp_path)
    now = [EngineTlsServer(EngineTls(), str(file), ME, start_ticks(ME))]
    known = EngineTlsClients(lambda _engine: now[0])
    known.client("e", HERE)

    file.unlink()
    now[0] = EngineTlsServer(EngineTls(), str(file), os.getppid(), start_ticks(os.getppid()))
    with pytest.raises(TlsError) as caught:
        known.client("e", HERE)
    assert caught.value.fault is TlsFault.NO_TRUST


def test_the_certificate_file_of_a_reused_pid_is_not_trusted(
    tmp_path: Path,
) -> None:
    write_files(tmp_path)

    assert (
        fault(EngineTlsServer(EngineTls(), str(tmp_path / "cert.pem"), ME, 1)) is TlsFault.NO_TRUST
    )


def test_host_names_are_verified_by_the_ca_and_addresses_by_the_pinned_certificate(
    tmp_path: Path,
) -> None:
    write_files(tmp_path)
    known = clients(server(tmp_path / "cert.pem", ca_file=str(tmp_path / "ca.pem")))

    assert known.client("e", "https://gpu-7:8000").verified is Verified.CA
    assert known.client("e", HERE).verified is Verified.PINNED
    named = server(tmp_path / "cert.pem", ca_file=str(tmp_path / "ca.pem"), server_name="localhost")
    assert clients(named).client("e", HERE).verified is Verified.CA


def test_without_a_certificate_file_addresses_are_verified_by_the_ca(
    tmp_path: Path,
) -> None:
    write_files(tmp_path)
    found = EngineTlsServer(EngineTls(ca_file=str(tmp_path / "ca.pem")))

    assert clients(found).client("e", HERE).verified is Verified.CA


def test_an_engine_without_trust_is_an_error_unless_insecure_is_set() -> None:
    assert fault(EngineTlsServer()) is TlsFault.NO_TRUST
    assert fault(EngineTlsServer(EngineTls(), "/nowhere", ME)) is TlsFault.NO_TRUST
    insecure = EngineTlsServer(EngineTls(insecure=True))
    assert clients(insecure).client("e", HERE).verified is Verified.INSECURE


def test_an_invalid_certificate_file_or_path_is_a_tls_fault(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----")

    assert fault(server(tmp_path / "cert.pem")) is TlsFault.UNREADABLE
    for path in ("/dev/zero", "/proc/self/mem", "\0", "x" * 9999, "/proc/kmsg"):
        assert fault(EngineTlsServer(EngineTls(), path, ME)) is TlsFault.NO_TRUST


def test_the_ca_file_is_reloaded_when_it_changes(tmp_path: Path) -> None:
    write_files(tmp_path)
    known = clients(EngineTlsServer(EngineTls(ca_file=str(tmp_path / "ca.pem"))))
    first = known.client("e", HERE)
    assert known.client("e", HERE) is first

    ca = (tmp_path / "ca.pem").read_bytes()
    (tmp_path / "ca.pem").write_bytes(ca + ca)

    assert known.client("e", HERE) is not first
