"""Nobody steers a node over the network who has not shown a certificate or the token."""

import asyncio
import contextlib
import datetime
import fcntl
import gc
import logging
import re
import socket
import ssl
import sys
import tempfile
import termios
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.control.client import new_request
from disagg_cluster.control.messages import DaemonStatus, PauseWorkers, WatchStatus
from disagg_cluster.control.remote import authentication, client_proxy
from disagg_cluster.control.remote.authentication import local_authentication, weakness
from disagg_cluster.control.remote.client_proxy import ClientProxy
from disagg_cluster.control.remote.coding import METHODS, encode_call
from disagg_cluster.control.remote.connections import ClientConnections
from disagg_cluster.control.remote.token_file import TokenFile
from disagg_exporter.http.server.authentication import OPEN, Access
from disagg_exporter.steps.local_sockets import listening_socket
from support.certificates import authority, client_context, server_context
from support.grpc_control import LOG, TOKEN, Served, client

HEALTH = "/grpc.health.v1.Health/Check"
OLD = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
STRANGERS_OF_AN_ADDRESS = 16


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dn-") as made:
        yield Path(made)


def certified(*names: str) -> Access:
    """Asks for client certificates; with names, for one of them."""
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(context)
    return Access(tls=context, client_names=frozenset(names))


def credentials(leaf: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    root = authority().cert_pem.bytes()
    if leaf is None:
        return grpc.ssl_channel_credentials(root)
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    return grpc.ssl_channel_credentials(root, leaf.private_key_pem.bytes(), chain)


def token_file(folder: Path, token: str = TOKEN) -> TokenFile:
    path = folder / "token"
    path.write_text(f"{token}\n")
    return TokenFile(path, LOG)


def send_garbage(served: Served, *names: str) -> None:
    """Send it over TLS, with a certificate for these names, until the server has had enough."""
    context, address = client_context(*names), ("127.0.0.1", served.port)
    context.set_alpn_protocols(["h2"])
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall(b"\xff" * 20_000)
        while link.recv(1000):
            pass


def handshakes() -> int:
    """How many TLS connections are in the memory."""
    return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())


@contextmanager
def without_collections() -> Iterator[None]:
    """So that only what nothing refers to any more is freed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def played(served: Served, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served.serving():
            await story()

    asyncio.run(run())


async def code_of(served: Served, trust: grpc.ChannelCredentials, token: str | None = None) -> str:
    async with client(served.there, trust, token) as asked:
        try:
            await asked.ask(new_request(PauseWorkers("w")), seconds=3.0)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


def test_a_client_with_a_certificate_is_answered_and_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = Served(folder, certified())

    async def story() -> None:
        operator = credentials(authority().issue_cert("operator.example"))
        assert await code_of(served, operator) == "OK"
        async with client(served.there, operator) as asked:
            assert await asked.raw(HEALTH)

    played(served, story)
    assert "pause w by the certificate of operator.example at 127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (None, "certificate"),
        (trustme.CA().issue_cert("operator.example"), "verif|issuer|unknown ca"),
        (authority().issue_cert("operator.example", not_after=OLD), "expired"),
        (authority().issue_cert("scraper.example"), "its certificate is for scraper.example"),
    ],
    ids=["none", "wrong authority", "expired", "another name"],
)
def test_a_missing_wrong_or_expired_certificate_is_refused_logged_and_counted(
    folder: Path, caplog: pytest.LogCaptureFixture, leaf: trustme.LeafCert | None, why: str
) -> None:
    served = Served(folder, certified("operator.example"))

    async def story() -> None:
        assert await code_of(served, credentials(leaf)) == "UNAVAILABLE"
        await until(lambda: served.core.refusals["tls"])
        good = credentials(authority().issue_cert("operator.example"))
        assert await code_of(served, good) == "OK"

    played(served, story)
    assert re.search(f"127.0.0.1 is refused: .*({why})", caplog.text, re.IGNORECASE)
    assert len(served.node.orders) == 1


def test_a_token_is_required_for_every_method_and_never_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    served = Served(folder, Access(tls=server_context()), token_file(folder))

    async def story() -> None:
        trust, wrong = credentials(), "f" * 32
        assert await code_of(served, trust, TOKEN) == "OK"
        assert await code_of(served, trust) == "UNAUTHENTICATED"
        assert await code_of(served, trust, wrong) == "UNAUTHENTICATED"
        for path in (HEALTH, METHODS["status"].path, "/x/Y"):
            async with client(served.there, trust) as asked:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await asked.raw(path)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert served.core.refusals["unauthenticated"] == 5

    played(served, story)
    assert len(served.node.orders) == 1
    assert TOKEN not in caplog.text
    assert "f" * 32 not in caplog.text


def test_a_changed_token_file_is_applied_unless_it_is_invalid(folder: Path) -> None:
    token = token_file(folder)
    before = token.digest
    for wrong in ("", "short", "with a space in it that is long enough"):
        (folder / "token").write_text(wrong)
        token.reload()
        assert token.digest == before
        assert not token.status().success
        with pytest.raises(ConfigError, match="32 printable"):
            TokenFile(folder / "token", LOG)
    (folder / "token").write_text("9" * 40)
    token.reload()
    assert token.digest != before
    assert token.status().success


def test_access_without_encryption_or_authentication_is_too_weak() -> None:
    encrypted = Access(tls=server_context())

    assert weakness(OPEN, has_token=True)
    assert weakness(encrypted, has_token=False)
    assert weakness(encrypted, has_token=True) == ""
    assert weakness(certified(), has_token=False) == ""


def test_access_without_a_token_or_client_certificate_refuses_every_client(folder: Path) -> None:
    served = Served(folder, Access(tls=server_context()))

    async def story() -> None:
        assert await code_of(served, credentials()) == "UNAVAILABLE"
        await until(lambda: served.core.refusals["tls"])

    played(served, story)


@asynccontextmanager
async def knocking(
    served: Served,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    yield reader, writer
    writer.transport.abort()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_flood_of_unfinished_handshakes_takes_little_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 256 KiB; some thousands of them would have ended the daemon."""
    served = Served(folder, certified())
    now = most = 0
    handshake = authentication._streams

    async def counted(*args: Any, **tls: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await handshake(*args, **tls)
        finally:
            now -= 1

    monkeypatch.setattr(authentication, "_streams", counted)
    # They wait before anything is accepted.
    flood = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(100)]

    async def story() -> None:
        await until(lambda: served.core.refusals["too_many"] >= 100 - STRANGERS_OF_AN_ADDRESS)
        await until(lambda: now == STRANGERS_OF_AN_ADDRESS)
        assert handshakes() <= STRANGERS_OF_AN_ADDRESS + 4

    with without_collections():
        played(served, story)
    for link in flood:
        link.close()
    assert most <= STRANGERS_OF_AN_ADDRESS + 4


@pytest.mark.parametrize("ended", ["no TLS", "no certificate", "no HTTP/2"])
def test_a_connection_that_has_ended_leaves_no_memory_behind(folder: Path, ended: str) -> None:
    served = Served(folder, certified())

    async def story() -> None:
        for _ in range(5):
            if ended == "no TLS":
                async with knocking(served) as (reader, writer):
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                    await reader.read()
            else:
                names = ("operator.example",) if ended == "no HTTP/2" else ()
                await asyncio.to_thread(send_garbage, served, *names)
        await until(lambda: handshakes() == 0)

    with without_collections():
        played(served, story)


def test_garbage_is_counted_whoever_ends_the_connection_first(folder: Path) -> None:
    served = Served(folder, certified())

    async def story() -> None:
        for _ in range(20):
            await asyncio.to_thread(send_garbage, served, "operator.example")
        await until(lambda: served.core.refusals["not_understood"] == 20)

    played(served, story)


def test_a_client_slow_in_the_handshake_is_disconnected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "AUTHENTICATION_SECONDS", 0.2)
    served = Served(folder, Access(tls=server_context()), token_file(folder))

    async def story() -> None:
        async with knocking(served) as (reader, _):
            assert await reader.read() == b""
        await until(lambda: served.core.refusals["too_slow"] == 1)

    played(served, story)


def test_a_client_that_sends_no_token_in_time_is_disconnected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_proxy, "AUTHENTICATION_SECONDS", 1.0)
    served = Served(folder, Access(tls=server_context()), token_file(folder))

    async def story() -> None:
        context = ssl.create_default_context()
        authority().configure_trust(context)
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection("localhost", served.port, ssl=context)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        await reader.read()
        writer.transport.abort()
        await until(lambda: served.core.refusals["too_slow"] == 1)
        assert await code_of(served, credentials(), TOKEN) == "OK"

    played(served, story)
    assert "no token was shown within 1 s" in caplog.text


def test_silent_connections_do_not_block_an_authenticated_client(folder: Path) -> None:
    served = Served(folder, certified())

    async def story() -> None:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(80)]
        operator = credentials(authority().issue_cert("operator.example"))
        assert await code_of(served, operator) == "OK"
        await until(lambda: served.core.refusals["too_many"] > 40)
        for _, writer in silent:
            writer.transport.abort()

    played(served, story)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\xff" * 512,
        b"\x00" * 70_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\xff\xff\x01\xff" * 50,
    ],
    ids=["path", "handshake", "zeros", "h2c"],
)
def test_data_that_is_not_tls_is_refused_and_logged_and_others_are_answered(
    folder: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    served = Served(folder, certified())

    async def story() -> None:
        async with knocking(served) as (reader, writer):
            writer.write(data)
            answer = await reader.read()
            assert b"root:" not in answer
        await until(lambda: served.core.refusals["tls"])
        operator = credentials(authority().issue_cert("operator.example"))
        assert await code_of(served, operator) == "OK"

    played(served, story)
    assert "127.0.0.1 is refused: TLS" in caplog.text


def test_another_local_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "disagg_cluster.control.remote.transport.local_authentication",
        lambda: local_authentication(users=(4711,)),
    )
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asked.ask(new_request(DaemonStatus()), seconds=3.0)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert served.core.refusals["not_allowed"] >= 1

    played(served, story)
    assert "is neither root nor this daemon's user" in caplog.text


def test_connections_are_limited_and_trusted_ones_are_not_displaced(tmp_path: Path) -> None:
    ended: list[int] = []
    connections = ClientConnections(tmp_path, trusted=2, strangers=4)
    known = [connections.enter("a", "a", float(n), lambda: None)[0] for n in range(2)]
    assert all(map(connections.trust, known))

    for number in range(10):
        visitor, displaced = connections.enter("b", "b", 10.0 + number, lambda: None)
        if displaced is not None:
            ended.append(displaced.number)

    assert len(ended) == 8
    assert not {one.number for one in known}.intersection(ended)
    assert not connections.trust(visitor)
    connections.leave(known[0])
    assert connections.trust(visitor)


def test_an_unread_watch_does_not_block_other_clients(folder: Path) -> None:
    served = Served(folder, certified())

    async def story() -> None:
        operator = credentials(authority().issue_cert("operator.example"))
        async with client(served.there, operator) as slow, client(served.there, operator) as quick:
            call = slow.channel.unary_stream(METHODS["watch"].path)
            unread = call(encode_call(new_request(WatchStatus())))
            await unread.initial_metadata()
            assert len(await quick.ask(new_request(DaemonStatus()))) == 2
            unread.cancel()
        await until(lambda: served.core.watches == 0)

    played(served, story)


def test_the_listener_sends_nothing_before_the_handshake(folder: Path) -> None:
    """No banner that would name versions."""
    served = Served(folder, certified())

    async def story() -> None:
        with socket.create_connection(("127.0.0.1", served.port)) as link:
            link.setblocking(False)
            await asyncio.sleep(0.05)
            with pytest.raises(BlockingIOError):
                link.recv(1)

    played(served, story)


def test_an_answer_is_passed_on_though_the_server_takes_nothing_more(tmp_path: Path) -> None:
    """A server that ends answers its calls first, while clients still acknowledge what they got."""
    inner, near = tmp_path / "inner", tmp_path / "near"

    async def story() -> None:
        loop = asyncio.get_running_loop()
        with (
            listening_socket(inner, kind=socket.SOCK_STREAM) as server,
            listening_socket(near, kind=socket.SOCK_STREAM) as listener,
            socket.socket(socket.AF_UNIX) as link,
        ):
            server.setblocking(False)
            link.setblocking(False)
            proxy = ClientProxy(
                listener,
                str(inner),
                local_authentication(),
                ClientConnections(tmp_path),
                lambda _outcome, _reason: None,
                LOG,
            )
            async with proxy.open():
                await loop.sock_connect(link, str(near))
                answering, _ = await loop.sock_accept(server)
                with answering:
                    answering.shutdown(socket.SHUT_RD)
                    link.send(b"acknowledged")
                    await until(lambda: not unread_bytes(link))
                    answering.send(b"the end")
                assert await loop.sock_recv(link, 100) == b"the end"
                assert await loop.sock_recv(link, 100) == b""

    asyncio.run(story())


def unread_bytes(link: socket.socket) -> int:
    """How much of what was sent the other end has not received (SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(link, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
