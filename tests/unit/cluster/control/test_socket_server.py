"""The socket of a daemon: who may ask, what bounds those who ask, and that it is always there."""

import asyncio
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.control.client import BrokenOffError, NoDaemonError, ask, new_request
from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.messages import (
    ControlReply,
    DaemonStatus,
    PauseWorkers,
    ReplyOutcome,
    RestartWorker,
    Verb,
    WatchStatus,
)
from disagg_cluster.control.socket_server import ControlSocket
from disagg_cluster.control.views import DaemonView, MoveView, NodeOverview, WorkerView
from disagg_cluster.control.wire import MOST_BYTES, encode_request
from disagg_cluster.lifecycle.reassignment.progress import Patience, Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role

LOG = logging.getLogger("test.control")
READY = WorkerView("w", WorkerState.READY, 1, pid=7, restart_seconds=60.0)


class Node:
    """A node that does as it is told, by the test's hand."""

    def __init__(self) -> None:
        self.workers: tuple[WorkerView, ...] = (READY,)
        self.orders: list[Orders] = []
        self.move: Reassignment | None = None
        self.broken = False
        self.unwritten = self.when_obeyed = ""

    def view(self) -> NodeOverview:
        if self.broken:
            raise RuntimeError("a defect")
        daemon = DaemonView("1.0", 1, "node", "/run/x", 1.0, unwritten=self.unwritten)
        return NodeOverview(daemon, self.workers, self.move)

    def obey(self, orders: Orders, request_id: str) -> None:
        self.orders.append(orders)
        self.unwritten = self.when_obeyed


class Site:
    """A served socket and what is behind it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.node = Node()
        self.core = ControlCore(self.node, LOG)
        self.socket = ControlSocket(path, self.core, LOG, **settings)

    async def ask(self, verb: Verb, **settings: Any) -> list[ControlReply]:
        return await asyncio.to_thread(lambda: list(ask(self.path, new_request(verb, **settings))))

    async def sent(self, data: bytes) -> list[dict[str, Any]]:
        """What comes back to a client that sends just this."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(data)
        lines = (await reader.read()).splitlines()
        writer.close()
        return [json.loads(line) for line in lines]


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dn-") as folder:
        yield Path(folder) / "control.socket"


def served(site: Site, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), site.socket.serving():
            await story()

    asyncio.run(run())
    assert not site.path.exists()


def test_a_status_request_is_answered(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        worker, daemon = await site.ask(DaemonStatus())
        assert worker.worker == READY
        assert daemon.daemon is not None
        assert daemon.daemon.version == "1.0"
        assert daemon.move is None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert site.socket.status().success
        site.node.move = Reassignment("m", "w", Role.DECODE, Role.PREFILL, 0, 0, Patience())
        *_, daemon = await site.ask(DaemonStatus())
        assert daemon.move == MoveView("m", "w", "decode", "prefill", "leaving")

    served(site, story)


def test_a_pause_that_the_journal_does_not_take_is_answered_with_that_doubt(path: Path) -> None:
    """That it cannot be written is known only after the attempt."""
    site = Site(path)
    site.node.when_obeyed = "cannot write the journal: No space left on device"

    async def story() -> None:
        [paused] = await site.ask(PauseWorkers("w"))
        assert paused.outcome is ReplyOutcome.DONE
        told = f"paused: w; the next daemon would not know of it: {site.node.when_obeyed}"
        assert paused.text == told
        *_, status = await site.ask(DaemonStatus())
        assert status.daemon is not None
        assert status.daemon.unwritten == site.node.when_obeyed

    served(site, story)


def test_a_restart_is_answered_when_it_is_done_and_counted(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        asking = asyncio.create_task(site.ask(RestartWorker("w")))
        while not site.node.orders:
            await asyncio.sleep(0)
        assert not asking.done()
        for worker in (
            replace(READY, state=WorkerState.STARTING, incarnation=2),
            replace(READY, incarnation=2),
        ):
            site.node.workers = (worker,)
            site.core.changed()
            while site.core.counts["restart", "done"] < worker.state.count("ready"):
                await asyncio.sleep(0)
        assert (await asking)[-1].outcome is ReplyOutcome.DONE
        assert site.core.counts["restart", "accepted"] == 1

    served(site, story)


def test_a_restart_continues_after_its_client_disconnects(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        request = encode_request(new_request(RestartWorker("w")))
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(request)
        while not site.node.orders:
            await asyncio.sleep(0)
        writer.close()
        site.node.workers = (replace(READY, incarnation=2),)
        site.core.changed()
        while not site.core.counts["restart", "done"]:
            await asyncio.sleep(0)

    served(site, story)


def test_a_client_that_disconnects_during_a_restart_frees_its_connection(path: Path) -> None:
    site = Site(path, most_connections=2)

    async def story() -> None:
        line = encode_request(new_request(RestartWorker("w")))
        gone, half_closed = [await asyncio.open_unix_connection(path) for _ in range(2)]
        for _, writer in (gone, half_closed):
            writer.write(line)
            writer.write_eof()
        while len(site.node.orders) < 1 or len(site.socket._waiting) < 2:
            await asyncio.sleep(0)
        gone[1].close()
        while len(site.socket._open) > 1:
            await site.socket.check()
            await asyncio.sleep(0)
        assert len(await site.ask(DaemonStatus())) == 2
        site.node.workers = (replace(READY, incarnation=2),)
        site.core.changed()
        lines = (await half_closed[0].read()).splitlines()
        assert json.loads(lines[-1])["outcome"] == "done"
        half_closed[1].close()

    served(site, story)


def test_a_waiting_client_is_disconnected_at_shutdown_without_an_error(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(path)

    async def run() -> None:
        async with asyncio.timeout(30):
            async with site.socket.serving():
                asking = asyncio.create_task(site.ask(RestartWorker("w")))
                while not site.node.orders:
                    await asyncio.sleep(0)
            with pytest.raises(BrokenOffError):
                await asking

    asyncio.run(run())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_restart_not_done_by_its_deadline_is_answered_with_a_timeout(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        late = (await site.ask(RestartWorker("w"), deadline_seconds=0.01))[-1]
        assert late.outcome is ReplyOutcome.TIMEOUT

    served(site, story)


def test_another_user_is_refused_counted_and_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(path, users=[os.geteuid() + 1])

    async def story() -> None:
        (refused,) = await site.ask(PauseWorkers())
        assert refused.outcome is ReplyOutcome.REFUSED
        assert "only root and the daemon's own user" in refused.text
        assert refused.reason == "not_allowed"
        assert site.node.orders == []
        assert site.core.counts["unknown", "denied"] == 1

    served(site, story)
    assert f"uid {os.geteuid()}" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_an_unprivileged_process_is_refused_whatever_the_socket_mode(path: Path, mode: int) -> None:
    script = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "link = socket.socket(socket.AF_UNIX)\n"
        "try: link.connect(sys.argv[1])\n"
        "except PermissionError: sys.exit('may not connect')\n"
        "link.sendall(sys.argv[2].encode())\n"
        "sys.stdout.write(link.makefile().read())\n"
    )
    site = Site(path)

    async def story() -> None:
        path.parent.chmod(0o755)
        path.chmod(mode)
        line = encode_request(new_request(PauseWorkers())).decode()
        argv = [sys.executable, "-c", script, str(path), line]
        ran = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
        if mode == 0o600:
            assert ran.stderr.strip() == "may not connect"
        else:
            assert json.loads(ran.stdout)["outcome"] == "refused"
        assert site.node.orders == []

    served(site, story)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "the request is no JSON"),
        (b"\0" * 1000 + b"\n", "the request is no JSON"),
        (b"x" * (MOST_BYTES + 10), f"the request is longer than {MOST_BYTES} bytes"),
        (b'{"version":1', "no whole line within 0.3 s"),
    ],
)
def test_a_malformed_request_is_refused_with_its_problem_and_others_are_answered(
    path: Path, data: bytes, problem: str
) -> None:
    site = Site(path, read_seconds=0.3)

    async def story() -> None:
        (reply,) = await site.sent(data)
        assert reply["problems"] == [problem]
        assert reply["reason"] == "not_understood"
        assert len(await site.ask(DaemonStatus())) == 2
        assert site.core.counts["unknown", "invalid"] == 1

    served(site, story)


def test_a_client_that_sends_or_reads_nothing_does_not_block_others(path: Path) -> None:
    site = Site(path, read_seconds=30, write_seconds=0.5)
    site.node.workers = tuple(replace(READY, worker=f"w{n}", reason="x" * 300) for n in range(2000))

    async def story() -> None:
        silent = await asyncio.open_unix_connection(path)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.setblocking(False)
            await asyncio.get_running_loop().sock_connect(deaf, str(path))
            deaf.send(encode_request(new_request(DaemonStatus())))
            assert len(await site.ask(DaemonStatus())) == 2001
            while len(site.socket._open) > 1:  # until the client that does not read is dropped
                await asyncio.sleep(0.01)
        silent[1].close()

    served(site, story)


def test_the_number_of_connections_is_limited(path: Path) -> None:
    site = Site(path, most_connections=2)

    async def story() -> None:
        waiting = [await asyncio.open_unix_connection(path) for _ in range(2)]
        (refused,) = await site.ask(DaemonStatus())
        assert refused.outcome is ReplyOutcome.REFUSED
        assert refused.reason == "too_many"
        for _, writer in waiting:
            writer.close()
        while site.socket._open:
            await asyncio.sleep(0.01)
        assert len(await site.ask(DaemonStatus())) == 2

    served(site, story)


def test_a_watch_receives_changes_and_the_end_and_counts_as_no_connection(path: Path) -> None:
    site = Site(path, most_connections=1)

    async def story() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(encode_request(new_request(WatchStatus())))

        async def told() -> dict[str, Any]:
            line: dict[str, Any] = json.loads(await reader.readline())
            return line

        assert [(await told())["outcome"] for _ in range(2)] == ["worker", "current"]
        assert len(await site.ask(DaemonStatus())) == 2
        site.node.workers = (replace(READY, state=WorkerState.DRAINING),)
        site.core.changed()
        assert (await told())["worker"]["state"] == "draining"
        site.core.end_watches()
        last = await told()
        assert (last["outcome"], last["final"]) == ("done", True)
        writer.close()

    served(site, story)
    assert site.core.counts["watch", "accepted"] == 1


def test_a_watch_whose_client_disconnects_is_removed(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(encode_request(new_request(WatchStatus())))
        while not site.core.watches:
            await asyncio.sleep(0)
        writer.close()
        while site.core.watches:
            await asyncio.sleep(0.01)
            await site.socket.check()

    served(site, story)


def test_the_number_of_watches_is_limited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disagg_cluster.control.core.MOST_WATCHES", 0)
    site = Site(path)

    async def story() -> None:
        (refused,) = await site.ask(WatchStatus())
        assert refused.outcome is ReplyOutcome.REFUSED
        assert refused.way_out

    served(site, story)
    assert site.core.counts["watch", "refused"] == 1
    assert site.core.refusals == {"too_many": 1}


def test_a_defect_in_answering_ends_that_request_only(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(path)

    async def story() -> None:
        site.node.broken = True
        with pytest.raises(BrokenOffError):
            await site.ask(DaemonStatus())
        site.node.broken = False
        assert len(await site.ask(DaemonStatus())) == 2

    served(site, story)
    assert "a defect" in caplog.text


def test_a_defect_while_a_change_is_followed_fails_the_change(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        asking = asyncio.create_task(site.ask(RestartWorker("w")))
        while not site.node.orders:
            await asyncio.sleep(0)
        site.node.broken = True
        site.core.changed()
        assert (await asking)[-1].outcome is ReplyOutcome.FAILED

    served(site, story)


def test_a_socket_that_vanished_or_was_replaced_is_recreated(path: Path) -> None:
    site = Site(path)

    async def story() -> None:
        path.unlink()
        with pytest.raises(NoDaemonError):
            await site.ask(DaemonStatus())
        await site.socket.check()
        assert len(await site.ask(DaemonStatus())) == 2

        path.unlink()
        path.write_text("somebody's file")
        await site.socket.check()
        assert not site.socket.status().success
        assert path.read_text() == "somebody's file"
        path.unlink()
        await site.socket.check()
        assert site.socket.status().success
        assert len(await site.ask(DaemonStatus())) == 2

    served(site, story)


def test_a_foreign_file_in_place_of_the_socket_is_not_removed_at_shutdown(path: Path) -> None:
    site = Site(path)

    async def run() -> None:
        async with site.socket.serving():
            path.unlink()
            path.write_text("somebody's file")

    asyncio.run(run())
    assert path.read_text() == "somebody's file"
