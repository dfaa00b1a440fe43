"""Every listener of a real daemon, and a planner's page, under hostile clients.

Whatever comes is refused and said, the listener goes on to serve, and no secret is in a log, a page
or an answer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import grpc
import grpc.aio
import pytest
import yaml

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import DaemonStatus
from disagg_cluster.control.remote.coding import METHODS
from support.certificates import authority, client_context, write_files
from support.children import free_port
from support.grpc_control import TOKEN, client
from support.running_node import DISAGG_NODE, RunningNode, running_node, wait_for
from support.two_planes import standin_node

PASSWORD = "a-password-of-the-pages"
IN_ENVIRONMENT = "a-value-of-an-engines-environment"
GUESS = "a-guess-that-nobody-repeats"
SECRETS = (PASSWORD, IN_ENVIRONMENT, GUESS, TOKEN, "PRIVATE KEY")


@dataclass(frozen=True)
class Site:
    """A running node and the ways in."""

    node: RunningNode
    folder: Path
    http: tuple[str, int]
    grpc: tuple[str, int]

    @property
    def log(self) -> str:
        return (self.folder / "daemon.log").read_text(encoding="utf-8")

    def open(self, listener: str) -> socket.socket:
        """A connection to a listener, encrypted where it asks for that."""
        if listener in ("control", "grpc here"):
            name = "control.socket" if listener == "control" else "control-grpc.socket"
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(20)
            link.connect(str(self.folder / "run" / name))
            return link
        place = self.http if listener == "pages" else self.grpc
        context = client_context()
        context.set_alpn_protocols(["h2"] if listener == "grpc there" else ["http/1.1"])
        plain = socket.create_connection(place, timeout=20)
        return context.wrap_socket(plain, server_hostname="localhost")

    def serves(self) -> None:
        """Each listener answers who may ask."""
        assert b" 200 " in self.page("/metrics")[:20]
        told = list(ask(self.folder / "run" / "control.socket", new_request(DaemonStatus()), 20.0))
        assert len(told) == 3

        async def over_grpc() -> None:
            trust = grpc.ssl_channel_credentials(authority().cert_pem.bytes())
            async with client(f"localhost:{self.grpc[1]}", trust, TOKEN) as there:
                assert len(await there.ask(new_request(DaemonStatus()), seconds=20.0)) == 3
            here = f"unix:{self.folder / 'run' / 'control-grpc.socket'}"
            async with client(here) as asked:
                assert len(await asked.ask(new_request(DaemonStatus()), seconds=20.0)) == 3

        asyncio.run(over_grpc())

    def page(self, path: str, password: str = PASSWORD) -> bytes:
        word = base64.b64encode(f"prometheus:{password}".encode()).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        asked = f"{head}Authorization: Basic {word}\r\n\r\n".encode()
        return exchange(lambda: self.open("pages"), asked)


def exchange(open_link: Callable[[], socket.socket], data: bytes, seconds: float = 20.0) -> bytes:
    """What comes back for bytes on a connection of their own, until it is closed or silent."""
    answer = b""
    with contextlib.suppress(OSError), open_link() as link:
        link.settimeout(seconds)
        link.sendall(data)
        while part := link.recv(65536):
            answer += part
    return answer


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # Short: the path of a socket in it may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="dn-") as made:
        yield from running(Path(made))


def running(folder: Path) -> Iterator[Site]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    tls = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"
    users = f"basic_auth_users: {{prometheus: '{hashed}'}}\n"
    write_files(folder, {"pages.yml": tls + users, "control.yml": tls, "token": TOKEN})
    node_file = standin_node(folder)
    node_file["workers"][0]["env"] = {"SECRET_KEY": IN_ENVIRONMENT}
    node_file["listen"]["web_config"] = str(folder / "pages.yml")
    port = free_port()
    files = {"web_config": str(folder / "control.yml"), "token_file": str(folder / "token")}
    node_file["control"] = {"grpc": {"listen": f"127.0.0.1:{port}", **files}}
    host, _, http_port = node_file["listen"]["metrics"].rpartition(":")
    with running_node(node_file, folder) as node:
        made = Site(node, folder, (host, int(http_port)), ("127.0.0.1", port))
        wait_for(lambda: "decode-0: starting → ready" in made.log, "the workers")
        wait_for((folder / "run" / "control-grpc.socket").exists, "gRPC")
        yield made


LISTENERS = ("pages", "control", "grpc here", "grpc there")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BEGINNINGS = (
    b"",
    b"GET ",
    PREFACE,
    b'{"version": 1, "id": "',
    b"\x16\x03\x01",
    b"POST / HTTP/1.1\r\n",
)


def fuzzed(seed: int) -> bytes:
    """Bytes that begin as something and go on as nothing."""
    drawn = random.Random(seed)
    size = drawn.choice((1, 40, 900, 20_000))
    return drawn.choice(BEGINNINGS) + drawn.randbytes(size) + b"\r\n\r\n"


def attacked(open_link: Callable[[], socket.socket]) -> bytes:
    """All that comes back to clients that send what nobody should."""
    long = (b"A" * 1_000_000, PREFACE + b"\xff" * 100_000)
    with ThreadPoolExecutor(8) as clients:
        sent = (*map(fuzzed, range(15)), *long)
        return b"".join(clients.map(lambda data: exchange(open_link, data, 0.3), sent))


@pytest.mark.parametrize("listener", LISTENERS)
def test_fuzzed_and_oversized_requests_are_refused_and_the_others_served(
    site: Site, listener: str
) -> None:
    before = len(site.log)
    answers = attacked(lambda: site.open(listener))

    site.serves()
    said = site.log[before:]
    assert "is refused" in said or "is not understood" in said
    for secret in SECRETS:
        assert secret.encode() not in answers
        assert secret not in said
    assert "Traceback" not in said


def test_an_unauthenticated_client_is_shown_nothing(site: Site) -> None:
    for path in ("/", "/metrics", "/view.json", "/healthz", "/readyz", "/../etc/passwd"):
        answer = site.page(path, GUESS)
        assert b" 401 " in answer[:20]
        assert b"disagg_" not in answer

    async def without_token() -> None:
        trust = grpc.ssl_channel_credentials(authority().cert_pem.bytes())
        async with client(f"localhost:{site.grpc[1]}", trust, GUESS) as there:
            for method in METHODS.values():
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await there.raw(method.path)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(without_token())
    site.serves()
    assert GUESS not in site.log
    assert "it sent no name and password, or wrong ones" in site.log
    assert "it shows no token, or a wrong one" in site.log


def test_slow_clients_do_not_block_others(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        for listener in LISTENERS:
            for begun in (b"", b"G", PREFACE[:7]):
                for _ in range(3):
                    link = stack.enter_context(site.open(listener))
                    link.sendall(begun)
        for place in (site.http, site.grpc):
            for _ in range(10):
                stack.enter_context(socket.create_connection(place, timeout=5)).sendall(b"\x16")
        site.serves()


def test_no_page_and_no_answer_shows_a_secret(site: Site) -> None:
    shown = b"".join(map(site.page, ("/", "/metrics", "/view.json", "/recent.json", "/nothing")))
    for reply in ask(site.folder / "run" / "control.socket", new_request(DaemonStatus()), 20.0):
        shown += repr(reply).encode()

    assert b"prefill-0" in shown
    for secret in SECRETS:
        assert secret.encode() not in shown
    assert ssl.OPENSSL_VERSION.encode() not in shown


def test_the_page_of_a_planner_withstands_hostile_requests(tmp_path: Path) -> None:
    """Its Prometheus is unreachable, and no page and no log may show its password."""
    write_files(
        tmp_path, {"web.yml": "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"}
    )
    word = tmp_path / "word"
    word.write_text(PASSWORD)
    credentials = {"basic_auth": {"username": "planner", "password_file": str(word)}}
    (tmp_path / "client.yml").write_text(yaml.safe_dump(credentials))
    port = free_port()
    told = {
        "prometheus": {"url": f"http://127.0.0.1:{free_port()}", "http_config": "client.yml"},
        "listen": {"metrics": f"127.0.0.1:{port}", "web_config": "web.yml"},
    }
    (tmp_path / "planner.yaml").write_text(yaml.safe_dump(told))

    def encrypted() -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        return client_context().wrap_socket(plain, server_hostname="localhost")

    def page(path: str = "/metrics") -> bytes:
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        return exchange(encrypted, head.encode())

    command = [*DISAGG_NODE, "planner", "--config", str(tmp_path / "planner.yaml")]
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as planner,
    ):
        try:
            wait_for(lambda: b" 200 " in page()[:20], "the planner's page")
            answers = attacked(encrypted)
            answers += attacked(lambda: socket.create_connection(("127.0.0.1", port), timeout=20))
            shown = page() + page("/") + page("/../etc/passwd")
        finally:
            planner.send_signal(signal.SIGTERM)
    said = log.read_text()
    assert b"disagg_" in shown
    assert b"root:" not in shown
    assert "127.0.0.1 is refused: " in said
    for secret in SECRETS:
        assert secret not in said
        assert secret.encode() not in shown + answers
