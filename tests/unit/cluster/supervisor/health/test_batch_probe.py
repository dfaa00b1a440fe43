"""One probe of all workers that were healthy: it confirms those that still are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.host.tcp_listeners import listening_inodes
from disagg_cluster.supervisor.health.prober import batch_probe
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_exporter.http.tls_errors import Trust
from support.page_server import NoPage, page_server
from support.raw_server import raw_server


def target_of(base: str, **more: str) -> ProbeTarget:
    return ProbeTarget(int(base.rpartition(":")[2]), "tiny", **more)


def proven(target: ProbeTarget) -> tuple[ProbeTarget, frozenset[int]]:
    return target, listening_inodes(target.host, target.port)


@pytest.fixture
def healthy() -> Iterator[ProbeTarget]:
    with page_server(lambda _path: b"") as base:
        yield target_of(base)


def test_a_worker_that_answers_on_its_proven_sockets_is_healthy(healthy: ProbeTarget) -> None:
    assert batch_probe([proven(healthy)], 10.0) == (True,)


@pytest.mark.parametrize("sockets", [frozenset(), frozenset({7})])
def test_a_worker_with_other_or_no_proven_sockets_is_not_confirmed(
    healthy: ProbeTarget, sockets: frozenset[int]
) -> None:
    assert batch_probe([(healthy, sockets)], 10.0) == (False,)


def test_a_worker_that_shares_its_port_with_another_listener_is_not_confirmed() -> None:
    with socket.socket() as ours, socket.socket() as theirs:
        for listener in (ours, theirs):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        target, sockets = proven(ProbeTarget(ours.getsockname()[1], "tiny"))
        theirs.bind(("127.0.0.1", target.port))
        theirs.listen()

        assert len(sockets) == 1
        assert batch_probe([(target, sockets)], 0.2) == (False,)


def test_unhealthy_silent_and_gone_workers_are_not_confirmed(healthy: ProbeTarget) -> None:
    def unwell(_path: str) -> bytes:
        raise NoPage

    def hang(_connection: socket.socket, over: threading.Event) -> None:
        over.wait(20)

    with page_server(unwell) as ill, raw_server(hang) as (silent, _):
        with page_server(lambda _path: b"") as base:
            gone = proven(target_of(base))
        workers = [proven(target_of(ill)), proven(target_of(silent)), gone, proven(healthy)]

        assert batch_probe(workers, 0.5) == (False, False, False, True)


def test_a_probe_uses_the_health_path_and_api_key_of_the_worker() -> None:
    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(answer) as (base, heads):
        target = target_of(base, health_path="/liveness", api_key="k1")
        assert batch_probe([proven(target)], 10.0) == (True,)

    assert heads[0].startswith(b"GET /liveness HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer k1\r\n" in heads[0]


def test_a_missing_client_certificate_does_not_affect_the_other_workers(
    healthy: ProbeTarget, tmp_path: Path
) -> None:
    gone = Trust(insecure=True, cert_file=tmp_path / "gone")
    other = ProbeTarget(healthy.port, "tiny", tls=gone), frozenset({7})

    assert batch_probe([other, proven(healthy), other], 10.0) == (False, True, False)
