"""Why a daemon of another host does not answer is said plainly; real servers, real gRPC."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from disagg_cluster.control.client import (
    BrokenOffError,
    MayNotAskError,
    NoDaemonError,
    new_request,
)
from disagg_cluster.control.messages import (
    ControlReply,
    DaemonStatus,
    ReplyOutcome,
    RestartWorker,
    Verb,
    WatchStatus,
)
from disagg_cluster.control.remote import grpc_client
from disagg_cluster.control.remote.connection_errors import CredentialsError, unavailable_reason
from disagg_cluster.control.remote.grpc_client import RemoteDaemon
from disagg_cluster.control.remote.token_file import TokenFile
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.server.authentication import Access
from support.certificates import authority, server_context, write_files
from support.grpc_control import LOG, TOKEN, Served


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dn-") as made:
        path = Path(made)
        write_files(path, {"token": TOKEN, "other-token": "x" * 32, "garbage.pem": "hello"})
        stranger = trustme.CA()
        (path / "other-ca.pem").write_bytes(stranger.cert_pem.bytes())
        leaf = stranger.issue_cert("nobody")
        leaf.private_key_and_cert_chain_pem.write_to_path(str(path / "stranger.pem"))
        yield path


def certified() -> Access:
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(context)
    return Access(tls=context)


def complaint(
    served: Served,
    asked: RemoteDaemon,
    verb: Verb = DaemonStatus(),  # noqa: B008 # frozen
    patience_seconds: float | None = None,
) -> DisaggError:
    """What is said to who asks a daemon so; `{port}` in the address is the daemon's."""
    asked = replace(asked, address=asked.address.format(port=served.port))

    async def run() -> None:
        async with served.serving():
            await asyncio.to_thread(lambda: list(asked.ask(new_request(verb), patience_seconds)))

    with pytest.raises(DisaggError) as told:
        asyncio.run(run())
    return told.value


HERE = "127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (RemoteDaemon(HERE, Path("other-ca.pem")), "give its CA file with --ca"),
        (RemoteDaemon(HERE), "give its CA file with --ca"),
        (RemoteDaemon("localhost.localdomain.invalid:{port}", Path("ca.pem")), "no host"),
        (RemoteDaemon("127.0.0.1:1", Path("ca.pem")), "nothing listens at that address"),
        (RemoteDaemon(HERE, Path("ca.pem")), "give --cert and --key"),
        (
            RemoteDaemon(HERE, Path("ca.pem"), Path("stranger.pem"), Path("stranger.pem")),
            "stranger.pem may not be accepted there; its log says why",
        ),
    ],
)
def test_a_failed_connection_is_reported_with_its_reason(
    folder: Path, asked: RemoteDaemon, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    told = complaint(Served(folder, certified()), asked)

    assert isinstance(told, NoDaemonError)
    assert why in str(told)
    assert "{" not in str(told)
    assert "last error" not in str(told)


@pytest.mark.parametrize("verb", [RestartWorker("w"), WatchStatus(), DaemonStatus()])
def test_a_daemon_that_accepts_a_call_and_is_silent_is_not_waited_for(
    folder: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> AsyncIterator[ControlReply]:
        await asyncio.Event().wait()
        yield ControlReply("", ReplyOutcome.DONE)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(grpc_client, "answer_seconds", lambda _verb: 0.5)
    served = Served(folder, certified())
    monkeypatch.setattr(served.core, "answer", never)
    ours = Path("cert.pem"), Path("key.pem")

    told = complaint(served, RemoteDaemon(HERE, Path("ca.pem"), *ours), verb)

    assert isinstance(told, BrokenOffError)
    assert "does not answer in time" in str(told)


def test_a_watched_daemon_that_falls_silent_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def once(*_: object) -> AsyncIterator[ControlReply]:
        yield ControlReply("", ReplyOutcome.CURRENT)
        await asyncio.Event().wait()

    monkeypatch.chdir(folder)
    served = Served(folder, certified())
    monkeypatch.setattr(served.core, "answer", once)
    asked = RemoteDaemon(HERE, Path("ca.pem"), Path("cert.pem"), Path("key.pem"))

    told = complaint(served, asked, WatchStatus(), patience_seconds=0.5)

    assert "does not answer in time" in str(told)


def test_a_certificate_for_another_host_name_is_reported() -> None:
    details = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:9849: Custom "
        "verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed."
    )
    assert unavailable_reason(details, None).startswith("its certificate is for other names")
    assert unavailable_reason("something new", None) == "something new"


def test_a_wrong_token_and_a_missing_token_are_reported_differently(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    asks_for_token = Access(tls=server_context()), TokenFile(folder / "token", LOG)
    asked = RemoteDaemon(HERE, Path("ca.pem"))

    none = complaint(Served(folder, *asks_for_token), asked)
    other = complaint(
        Served(folder, *asks_for_token), replace(asked, token_file=Path("other-token"))
    )

    assert isinstance(none, MayNotAskError)
    assert "wants its token" in str(none)
    assert isinstance(other, MayNotAskError)
    assert "does not know the token of other-token" in str(other)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (RemoteDaemon(HERE, Path("garbage.pem")), "garbage.pem: has no certificate in PEM"),
        (RemoteDaemon(HERE, Path("gone.pem")), "gone.pem: cannot be read: No such file"),
        (RemoteDaemon(HERE, None, Path("cert.pem")), "--cert and --key"),
        (
            RemoteDaemon(HERE, None, Path("cert.pem"), Path("other-key.pem")),
            "other-key.pem: does not belong to the certificate cert.pem",
        ),
        (
            RemoteDaemon(HERE, None, Path("garbage.pem"), Path("key.pem")),
            "garbage.pem, key.pem: are not a certificate and a key in PEM",
        ),
    ],
)
def test_wrong_credential_files_are_named_before_connecting(
    folder: Path, asked: RemoteDaemon, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate without its key would make gRPC end the whole process."""
    monkeypatch.chdir(folder)
    with pytest.raises(CredentialsError, match=why):
        list(asked.ask(new_request(DaemonStatus())))
