"""The core over real gRPC: the same answers as on the socket, with the codes of gRPC."""

import asyncio
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from disagg_cluster.control.client import new_request
from disagg_cluster.control.messages import (
    ControlRequest,
    DaemonStatus,
    ExplainWorker,
    PauseWorkers,
    ReplyOutcome,
    RereadNodeFile,
    RereadReport,
    RestartWorker,
    WatchStatus,
)
from disagg_cluster.control.refusal import ControlRefusal, RefusalReason
from disagg_cluster.control.remote import server
from disagg_cluster.control.remote.coding import METHODS, SERVICE, decode_answer, encode_call
from disagg_cluster.control.remote.connections import ClientConnections
from disagg_cluster.lifecycle.state import WorkerState
from support.grpc_control import READY, Served, client
from support.unread_stream import unread_calls

WRONG_FILE = ControlRefusal(RefusalReason.WRONG_NODE_FILE, "nothing was changed", "mend it")
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dn-") as made:
        yield Path(made)


def played(served: Served, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served.serving():
            await story()

    asyncio.run(run())


def test_a_status_is_the_same_as_on_the_socket(folder: Path) -> None:
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            worker, daemon = await asked.ask(new_request(DaemonStatus()))
            assert worker.worker == READY
            assert daemon.daemon == served.node.view().daemon
        assert served.folder.control_grpc.stat().st_mode & 0o777 == 0o600
        assert served.transport.status().success

    played(served, story)
    assert not served.folder.control_grpc.exists()


def test_a_restart_is_answered_when_done_and_its_caller_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(folder)
    caplog.set_level("INFO")

    async def story() -> None:
        async with client(served.here) as asked:
            asking = asyncio.create_task(asked.ask(new_request(RestartWorker("w"))))
            while not served.node.orders:
                await asyncio.sleep(0.001)
            served.node.workers = (replace(READY, incarnation=2),)
            served.core.changed()
            *_, last = await asking
            assert last.outcome is ReplyOutcome.DONE

    played(served, story)
    assert f"restart w by uid {os.geteuid()} (pid " in caplog.text


def test_a_repeated_request_id_orders_one_change(folder: Path) -> None:
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            request = new_request(PauseWorkers("w"), request_id="same")
            first, again = await asked.ask(request), await asked.ask(request)
            assert first == again
            assert len(served.node.orders) == 1
            code, reply = await asked.refused(ControlRequest("same", PauseWorkers(None)))
            assert code == "ALREADY_EXISTS"
            assert reply is not None
            assert reply.reason == "reused_id"

    played(served, story)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (new_request(PauseWorkers("x")), "NOT_FOUND"),
        (new_request(ExplainWorker("x")), "NOT_FOUND"),
        (ControlRequest("", PauseWorkers("w")), "INVALID_ARGUMENT"),
        (ControlRequest("a b", PauseWorkers("w")), "INVALID_ARGUMENT"),
        (new_request(ExplainWorker("x" * 70_000)), "INVALID_ARGUMENT"),
    ],
)
def test_refusals_have_codes_and_the_whole_reply(
    folder: Path, request_: ControlRequest, code: str
) -> None:
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            said, reply = await asked.refused(request_)
            assert said == code
            assert reply is not None
            assert reply.reason
            assert served.core.refusals[reply.reason] == 1

    played(served, story)


@pytest.mark.parametrize("problem", ["workers[3].port: is taken " * 12, "\u20ac" * 400])
def test_problems_beyond_the_metadata_limit_are_counted_not_listed(
    folder: Path, problem: str
) -> None:
    served = Served(folder, reread=RereadReport(problems=(problem,) * 200, refusal=WRONG_FILE))

    async def story() -> None:
        async with client(served.here) as asked:
            code, reply = await asked.refused(new_request(RereadNodeFile()))
            assert code == "FAILED_PRECONDITION"
            assert reply is not None
            assert (reply.reason, reply.way_out) == ("wrong_node_file", "mend it")
            assert reply.problems[0] == problem[:300]
            assert reply.problems[-1] == f"and {200 - len(reply.problems) + 1} more"

    played(served, story)


def test_a_client_deadline_does_not_end_a_restart_and_another_is_refused(folder: Path) -> None:
    served = Served(folder)
    served.node.workers = (READY, replace(READY, worker="x"))

    async def story() -> None:
        async with client(served.here) as asked:
            # Connected already, the call has nearly all of its deadline to be received.
            await asked.ask(new_request(DaemonStatus()))
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await asked.ask(new_request(RestartWorker("w")), seconds=0.5)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            code, reply = await asked.refused(new_request(RestartWorker("x")))
            assert code == "ABORTED"
            assert reply is not None
            assert "restart w is under way" in reply.text

    played(served, story)


def test_a_watch_streams_changes_until_the_daemon_ends(folder: Path) -> None:
    served = Served(folder)
    told = []

    async def watch() -> None:
        async with client(served.here) as asked:
            call = asked.channel.unary_stream(METHODS["watch"].path)
            async for answer in call(encode_call(new_request(WatchStatus()))):
                told.append(decode_answer(answer))

    async def run() -> None:
        async with served.serving():
            watching = asyncio.create_task(watch())
            while len(told) < 2:
                await asyncio.sleep(0.001)
            served.node.workers = (replace(READY, state=WorkerState.DRAINING),)
            served.core.changed()
            while len(told) < 3:
                await asyncio.sleep(0.001)
        await watching

    asyncio.run(run())
    assert [reply.outcome.value for reply in told] == ["worker", "current", "worker", "done"]
    assert told[2].worker is not None
    assert told[2].worker.state is WorkerState.DRAINING


def test_watches_that_accept_nothing_are_ended_with_their_connection(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They would keep all others from watching, also on this host."""
    monkeypatch.setattr(server, "WRITE_SECONDS", 0.2)
    served = Served(folder)

    async def story() -> None:
        watch, there = METHODS["watch"].path, served.folder.control_grpc
        async with unread_calls(there, watch, 3) as reader:
            while served.core.watches < 3:
                await asyncio.sleep(0.001)
            # To its end: the server closes the connection.
            await reader.read()
        while served.core.watches:
            await asyncio.sleep(0.001)
        async with client(served.here) as asked:
            assert len(await asked.ask(new_request(DaemonStatus()))) == 2

    played(served, story)
    assert "accepts nothing for 0.2 s: its connection is ended" in caplog.text
    assert "Traceback" not in caplog.text


def test_clients_that_go_while_they_are_answered_leave_no_error_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(folder)

    async def story() -> None:
        watch, there = METHODS["watch"].path, served.folder.control_grpc
        async with unread_calls(there, watch, 5):
            while served.core.watches < 5:
                await asyncio.sleep(0.001)
        while served.core.watches:
            await asyncio.sleep(0.001)

    played(served, story)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_the_standard_health_service_answers(folder: Path) -> None:
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            for name in ("", SERVICE):
                request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
                answer = health_pb2.HealthCheckResponse.FromString(await asked.raw(HEALTH, request))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

    played(served, story)


def test_malformed_calls_are_refused_and_counted_and_others_are_answered(folder: Path) -> None:
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            for data in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f"):
                with pytest.raises(grpc.aio.AioRpcError) as garbage:
                    await asked.raw(METHODS["pause"].path, data)
                assert garbage.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            for path in ("/x/Y", f"/{SERVICE}/Reboot", "/../../etc/passwd"):
                with pytest.raises(grpc.aio.AioRpcError) as unknown:
                    await asked.raw(path)
                assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert served.core.refusals["not_understood"] == 2
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(300)):
            reader, writer = await asyncio.open_unix_connection(served.folder.control_grpc)
            writer.write(data)
            await reader.read()
            writer.close()
        async with client(served.here) as asked:
            assert len(await asked.ask(new_request(DaemonStatus()))) == 2

    played(served, story)
    # Unknown methods are logged together, once their client has disconnected.
    assert served.core.refusals["not_understood"] == 5


def test_a_client_beyond_the_limit_is_refused_with_a_reply(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The proxy admits it, and the server finds all places taken, as with a token.
    places = iter((True, False))
    monkeypatch.setattr(ClientConnections, "trust", lambda *_: next(places))
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            code, reply = await asked.refused(new_request(PauseWorkers("w")))
            assert code == "RESOURCE_EXHAUSTED"
            assert reply is not None
            assert (reply.outcome, reply.reason) == (ReplyOutcome.REFUSED, "too_many")

    played(served, story)


@pytest.mark.parametrize(
    ("data", "metadata"),
    [(bytes(2_000_000), ()), (b"", (("x-long", "x" * 40_000),))],
    ids=["message", "headers"],
)
def test_an_oversized_call_refused_by_grpc_is_logged_and_counted_by_the_proxy(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    metadata: tuple[tuple[str, str], ...],
) -> None:
    """The log names the client, also one whose earlier calls were answered."""
    served = Served(folder)

    async def story() -> None:
        async with client(served.here) as asked:
            assert len(await asked.ask(new_request(DaemonStatus()))) == 2
            call = asked.channel.unary_unary(METHODS["pause"].path)
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await call(data, timeout=10.0, metadata=metadata)
        async with client(served.here) as asked:
            assert len(await asked.ask(new_request(DaemonStatus()))) == 2

    played(served, story)
    # gRPC gives the next channel the connection of the one before, as it sees fit.
    assert re.search("1 of its [23] calls did not come through", caplog.text)
    assert served.core.refusals["not_understood"] == 1


def test_deleted_socket_files_are_recreated(folder: Path) -> None:
    served = Served(folder)

    async def story() -> None:
        served.folder.control_grpc.unlink()
        while not served.folder.control_grpc.exists():
            await asyncio.sleep(0.01)
        async with client(served.here) as asked:
            assert len(await asked.ask(new_request(DaemonStatus()))) == 2

    played(served, story)


def test_a_client_that_bypasses_the_proxy_is_unauthenticated(folder: Path) -> None:
    served = Served(folder)

    async def story() -> None:
        async with client(f"unix:{served.folder.grpc / 'local'}") as asked:
            assert (await asked.refused(new_request(PauseWorkers("w"))))[0] == "UNAUTHENTICATED"
        assert served.folder.grpc.stat().st_mode & 0o777 == 0o700

    played(served, story)
    assert served.node.orders == []


def test_without_the_setting_grpc_is_not_loaded() -> None:
    program = (
        "import sys\n"
        "import disagg_cluster.daemon.daemon, disagg_cluster.cli.control\n"
        "print({'grpc', 'google.protobuf', 'grpc_health'}.intersection(sys.modules))"
    )
    words = [sys.executable, "-c", program]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)

    assert ran.stdout == "set()\n"
