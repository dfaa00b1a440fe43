"""Whether a worker serves: the verdict on the facts of a probe, and probes of real servers."""

import contextlib
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from disagg_cluster.config import EngineTls
from disagg_cluster.host.tcp_listeners import (
    Listener,
    Owner,
    ask_kernel,
    inodes_by_port,
    listening_inodes,
    owner_of,
    read_files,
)
from disagg_cluster.lifecycle.state import Health
from disagg_cluster.supervisor.health.readiness import (
    ProbeFacts,
    ProbeResponse,
    ProbeResult,
    ProbeTarget,
    get,
    judge,
    probe,
)
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from disagg_exporter.http.tls_errors import Trust
from support.certificates import authority, server_context, write_files
from support.children import PYTHON, SERVER, free_port, wait_readable
from support.collected import is_collected_in_json
from support.listening import listening
from support.page_server import NoPage, page_server

TARGET = ProbeTarget(port=8100, served_model_name="tiny")
TINY = ProbeResponse(200, b'{"data": [{"id": "tiny"}, {"id": "lora"}]}')
OTHER = ProbeResponse(200, b'{"data": [{"id": "huge"}]}')
INODES = frozenset({7})
WELL = ProbeFacts(TARGET, health=ProbeResponse(200), owner=Owner.OURS, inodes=INODES, models=TINY)


def test_a_worker_that_serves_its_model_on_its_own_socket_is_healthy_and_proven() -> None:
    assert judge(WELL) == ProbeResult(Health.HEALTHY, "healthy", INODES)


def test_another_server_on_the_port_is_foreign_whatever_it_answers() -> None:
    result = judge(replace(WELL, owner=Owner.OTHER))

    assert result == ProbeResult(Health.FOREIGN, "another process listens on port 8100")


@pytest.mark.parametrize(
    ("change", "health", "why"),
    [
        ({"health": ProbeResponse(why="refused")}, Health.NO_ANSWER, "/health: refused"),
        ({"health": ProbeResponse(503)}, Health.UNHEALTHY, "/health answers 503"),
        ({"models": ProbeResponse(why="late")}, Health.NO_ANSWER, "/v1/models: late"),
        ({"models": ProbeResponse(500)}, Health.UNHEALTHY, "/v1/models answers 500"),
        (
            {"models": OTHER},
            Health.UNHEALTHY,
            "the server on port 8100 serves huge, not tiny",
        ),
        (
            {"models": OTHER, "owner": Owner.UNKNOWN},
            Health.FOREIGN,
            "the server on port 8100 serves huge, not tiny",
        ),
        (
            {"models": ProbeResponse(401), "owner": Owner.UNKNOWN},
            Health.UNHEALTHY,
            "/v1/models answers 401",
        ),
    ],
)
def test_a_verdict_names_what_is_wrong(
    change: dict[str, ProbeResponse | Owner], health: Health, why: str
) -> None:
    assert judge(replace(WELL, **change)) == ProbeResult(health, why)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"not json", b"[]", b"{}", b'{"data": 3}', b'{"data": [{}, 1]}', b"\xff"),
        pytest.param(b'{"data": ' + b"[" * 100_000, id="deeper than Python goes"),
        pytest.param(b'{"data": [{"id": ' + b"[" * 900 + b"]" * 900 + b"}]}", id="a deep name"),
    ],
)
def test_an_invalid_models_page_names_no_model(body: bytes) -> None:
    result = judge(replace(WELL, models=ProbeResponse(200, body)))

    assert result.why == "the server on port 8100 serves no model, not tiny"


def test_nothing_is_finalized_at_the_depth_of_a_hostile_models_page() -> None:
    page = ProbeResponse(200, b"[" * 100_000)

    assert not is_collected_in_json(lambda: judge(replace(WELL, models=page)))


@pytest.mark.parametrize("owner", [Owner.UNKNOWN, Owner.NOBODY])
def test_with_an_unknown_socket_owner_the_models_page_alone_decides(
    owner: Owner,
) -> None:
    result = judge(replace(WELL, owner=owner))

    assert result.health is Health.HEALTHY
    assert "by its models page alone" in result.why
    assert result.proven == frozenset()


def test_its_own_socket_is_enough_if_the_models_page_needs_an_unknown_key() -> None:
    assert judge(replace(WELL, models=ProbeResponse(401))).health is Health.HEALTHY


def test_a_worker_without_a_model_is_identified_by_its_socket_only() -> None:
    router = replace(WELL, target=ProbeTarget(8100, ""), models=ProbeResponse(why="not asked"))

    assert judge(router).health is Health.HEALTHY
    assert judge(replace(router, owner=Owner.UNKNOWN)).health is Health.UNHEALTHY


def test_a_worker_may_have_another_health_path() -> None:
    alive = replace(TARGET, health_path="/liveness")

    assert (
        judge(replace(WELL, target=alive, health=ProbeResponse(500))).why == "/liveness answers 500"
    )


def test_sockets_proven_before_need_no_models_page() -> None:
    assert judge(replace(WELL, models=None)) == ProbeResult(Health.HEALTHY, "healthy", INODES)


def test_every_listener_on_the_port_must_be_ours() -> None:
    sockets = {10: [1, 2], 11: [3]}

    assert owner_of(frozenset({1, 3}), sockets, sockets.__getitem__) is Owner.OURS
    assert owner_of(frozenset({1, 4}), sockets, sockets.__getitem__) is Owner.OTHER
    assert owner_of(frozenset(), sockets, sockets.__getitem__) is Owner.NOBODY


def test_unreadable_processes_leave_the_socket_owner_unknown() -> None:
    def sockets_of(pid: int) -> list[int]:
        if pid == 10:
            raise PermissionError
        return [3]

    assert owner_of(frozenset({1}), [10, 11], sockets_of) is Owner.UNKNOWN
    assert owner_of(frozenset({3}), [10, 11], sockets_of) is Owner.OURS


def test_only_listeners_that_can_accept_the_connection_count() -> None:
    table = [(ip_address(a), n) for n, a in enumerate(("127.0.0.1", "0.0.0.0", "10.0.0.5", "::"))]

    assert listening_inodes("127.0.0.1", 8100, lambda _port: table) == {0, 1}
    assert listening_inodes("10.0.0.5", 8100, lambda _port: table) == {1, 2}
    assert listening_inodes("127.0.0.1", 8100, lambda _port: table[2:]) == {3}
    assert listening_inodes("::1", 8100, lambda _port: table) == {3}


def test_a_foreign_ipv6_listener_is_not_counted_for_an_ipv4_worker() -> None:
    """As a web server beside it that listens on [::] only: the worker must not be killed for it."""
    with listening("127.0.0.1") as ours, listening("::", ours.getsockname()[1]):
        port = ours.getsockname()[1]
        inode = os.fstat(ours.fileno()).st_ino
        assert listening_inodes("127.0.0.1", port) == {inode}


def test_the_tables_in_proc_are_read_up_to_the_first_established_connection(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
        " inode\n"
        "   0: 0100007F:1FA4 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 11 1\n"
        "   1: 0100007F:1FA5 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12 1\n"
        "   2: 0500000A:1FA4 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 13 1\n"
        "   3: 0100007F:1FA4 0100007F:C001 01 00000000:00000000 00:00000000 00000000 0 0 14 1\n"
    )

    assert list(read_files(0x1FA4, tmp_path)) == [
        (ip_address("127.0.0.1"), 11),
        (ip_address("10.0.0.5"), 13),
    ]


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("table", [ask_kernel, read_files])
def test_a_real_listener_is_found_with_its_address(
    bound: str, table: Callable[[int], Iterator[Listener]]
) -> None:
    with socket.socket(socket.AF_INET6 if ":" in bound else socket.AF_INET) as listener:
        if ":" in bound:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((bound, 0))
        listener.listen()
        port = listener.getsockname()[1]

        expected = (ip_address(bound.removeprefix("::ffff:")), os.fstat(listener.fileno()).st_ino)
        assert list(table(port)) == [expected]
        with socket.create_connection((bound, port)):
            assert list(table(port)) == [expected]


def test_listening_inodes_are_grouped_by_port() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as two,
    ):
        table = inodes_by_port()

        for listener in (one, two):
            inode = os.fstat(listener.fileno()).st_ino
            assert table[listener.getsockname()[1]] >= {inode}


def test_a_refused_kernel_query_is_an_error_and_not_an_empty_result() -> None:
    with pytest.raises(OSError, match="No such file"):
        list(ask_kernel(8100, protocol=254))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[int, str], ChildProcess]]:
    """Start a server of its own session on a port; returns before it listens."""
    servers: list[ChildProcess] = []

    def serve(port: int, model: str) -> ChildProcess:
        argv = [*PYTHON, SERVER, str(port), model]
        servers.append(start(argv, dict(os.environ), tmp_path / "log"))
        return servers[-1]

    yield serve
    for server in servers:
        server.signal_group(signal.SIGKILL)
        assert wait_readable(server.pidfd)
        server.reap()


def until_answered(target: ProbeTarget, session: int) -> ProbeResult:
    """Probe until something answers."""
    give_up = time.monotonic() + 20
    while True:
        result = probe(target, session, 5)
        if result.health is not Health.NO_ANSWER or time.monotonic() > give_up:
            return result
        os.sched_yield()


def test_a_real_server_is_healthy_to_its_own_session_and_foreign_to_any_other(
    serve: Callable[[int, str], ChildProcess], tmp_path: Path
) -> None:
    target = ProbeTarget(free_port(), "tiny")
    ours = serve(target.port, "tiny")

    own = until_answered(target, ours.pid)
    assert (own.health, len(own.proven)) == (Health.HEALTHY, 1)
    assert probe(target, ours.pid, 5, own.proven) == own
    foreign = probe(target, os.getpid(), 5)
    assert foreign.health is Health.FOREIGN


def test_sockets_proven_for_a_server_do_not_prove_its_successor(
    serve: Callable[[int, str], ChildProcess],
) -> None:
    target = ProbeTarget(free_port(), "tiny")
    first = serve(target.port, "tiny")
    proven = until_answered(target, first.pid).proven
    first.signal_group(signal.SIGKILL)
    assert wait_readable(first.pidfd)
    second = serve(target.port, "tiny")
    until_answered(target, second.pid)

    assert probe(target, first.pid, 5, proven).health is Health.FOREIGN


def test_a_server_of_ours_with_another_model_is_not_healthy(
    serve: Callable[[int, str], ChildProcess],
) -> None:
    target = ProbeTarget(free_port(), "tiny")
    server = serve(target.port, "huge")

    assert until_answered(target, server.pid).health is Health.UNHEALTHY


def test_a_port_without_a_listener_gives_no_answer() -> None:
    result = probe(ProbeTarget(free_port(), "tiny"), os.getpid(), 5)

    assert result.health is Health.NO_ANSWER
    assert "refused" in result.why


def test_a_worker_that_serves_tls_is_probed_by_tls(tmp_path: Path) -> None:
    """The kernel identifies the socket's owner: the certificate may be foreign or expired."""
    wants = server_context()
    authority().configure_trust(wants)
    wants.verify_mode = ssl.CERT_REQUIRED
    write_files(tmp_path)
    ours = EngineTls(cert_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"))

    def answer(path: str) -> bytes:
        if path == "/health":
            return b""
        if path == "/v1/models":
            return b'{"data": [{"id": "tiny"}]}'
        raise NoPage

    def probed(context: ssl.SSLContext | None, tls: Trust | None, path: str) -> ProbeResult:
        with page_server(answer, context) as base:
            port = int(base.rpartition(":")[2])
            target = ProbeTarget(port, "tiny", health_path=path, tls=tls)
            return probe(target, os.getsid(0), 10)

    anybody = Trust(insecure=True)
    assert probed(server_context(), anybody, "/health").health is Health.HEALTHY
    assert probed(wants, ours.probing, "/health").health is Health.HEALTHY
    assert probed(server_context(), anybody, "/sick").why == "/sick answers 503"
    for unasked, why in (
        (probed(wants, anybody, "/health"), "requires a client certificate"),
        (probed(None, anybody, "/health"), "does not use TLS"),
        (probed(wants, Trust(insecure=True, cert_file=tmp_path / "gone"), "/health"), "gone"),
    ):
        assert (unasked.health, why in unasked.why) == (Health.UNDECIDED, True), unasked


def test_another_process_on_the_port_is_foreign_whatever_its_tls() -> None:
    unasked = ProbeResponse(why="it does not use TLS", was_asked=False)
    target = ProbeTarget(8000, "tiny", tls=Trust(insecure=True))

    found = judge(ProbeFacts(target, unasked, Owner.OTHER, frozenset({7}), None))

    assert found.health is Health.FOREIGN


@pytest.fixture
def talker() -> Iterator[Callable[[bytes, bool], ProbeTarget]]:
    """A server in this process that sends some bytes once, then closes or keeps sending."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []
    enough = threading.Event()

    def serve(listener: socket.socket, said: bytes, drips: bool) -> None:
        connection = listener.accept()[0]
        # The client hangs up while bytes are being sent.
        with connection, contextlib.suppress(ConnectionError):
            connection.recv(4096)
            connection.sendall(said)
            while drips and not enough.wait(0.02):
                connection.sendall(b"x")

    def talk(said: bytes, drips: bool) -> ProbeTarget:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        thread = threading.Thread(target=serve, args=(listener, said, drips))
        thread.start()
        threads.append(thread)
        return ProbeTarget(listener.getsockname()[1], "tiny")

    yield talk
    enough.set()
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()


def test_a_server_that_keeps_sending_bytes_is_abandoned_at_the_deadline(
    talker: Callable[[bytes, bool], ProbeTarget],
) -> None:
    target = talker(b"HTTP/1.1 200 OK\r\n\r\n", True)
    begin = time.monotonic()

    assert get(target, "/health", begin + 0.2) == ProbeResponse(why="no answer in time")
    assert time.monotonic() - begin < 5


def test_a_server_that_never_accepts_is_abandoned_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = ProbeTarget(listener.getsockname()[1], "tiny")

        answer = get(target, "/health", time.monotonic() + 0.1)
    assert answer == ProbeResponse(why="no answer in time")


MANY = b"HTTP/1.1 %b\r\n\r\n" % (b"2" * 5000)
"""More digits than Python makes a number of."""


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\r\n", MANY]
)
def test_a_response_that_is_not_http_is_no_answer(
    talker: Callable[[bytes, bool], ProbeTarget], said: bytes
) -> None:
    answer = get(talker(said, False), "/health", time.monotonic() + 5)

    assert answer == ProbeResponse(why="the answer is not HTTP")


@pytest.mark.parametrize(
    ("family", "host", "shown"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")],
)
def test_a_request_names_the_host_as_a_url_does(
    family: socket.AddressFamily, host: str, shown: str
) -> None:
    """With brackets around an IPv6 address, without which a server may reject the header."""
    requests: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection = listener.accept()[0]
        with connection:
            requests.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        answer = get(ProbeTarget(port, "tiny", host), "/health", time.monotonic() + 5)
        thread.join()

    assert answer.status == 200
    assert f"\r\nHost: {shown}:{port}\r\n".encode() in requests[0]


def test_a_probe_that_cannot_be_sent_is_undecided() -> None:
    # TCP has no broadcast: the kernel refuses the connection before anything is sent.
    result = probe(ProbeTarget(8100, "tiny", host="255.255.255.255"), os.getpid(), 1)

    assert result.health is Health.UNDECIDED
