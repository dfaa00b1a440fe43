"""Failures are delivered to commands and URLs; a hanging or failing delivery blocks nothing."""

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.lifecycle.failures import Failure, FailureKind
from disagg_cluster.supervisor.hooks import post_delivery
from disagg_cluster.supervisor.hooks.command_delivery import CommandDelivery
from disagg_cluster.supervisor.hooks.failure_notifier import (
    MOST_WAITING,
    FailureNotifier,
    HookError,
)
from disagg_cluster.supervisor.hooks.post_delivery import PostDelivery
from support.children import children, descriptors, free_port, is_gone

LOG = logging.getLogger("test.hook")
FAILURE = Failure(FailureKind.CRASHED, "w", "decode", "backoff", "why", -9, 7, 0, 1.5, "/w.log")


def deliver(script: str, tmp_path: Path, **environ: str) -> str:
    """Run a program in Python; what it wrote."""
    return run((sys.executable, "-c", script), tmp_path, 30.0, **environ)


def run(argv: tuple[str, ...], tmp_path: Path, seconds: float, **environ: str) -> str:
    log = tmp_path / "hook.log"
    command = CommandDelivery(argv, {"PATH": os.environ["PATH"], **environ}, log, seconds)
    before, open_before = children(), descriptors()
    try:
        asyncio.run(command.deliver(b'{"event": "crashed"}\n'))
    finally:
        assert children() <= before
        assert descriptors() == open_before
    return log.read_text()


def test_a_command_reads_the_failure_and_its_output_is_kept(tmp_path: Path) -> None:
    wrote = deliver("import json, sys; print(json.load(sys.stdin)['event'])", tmp_path)

    assert wrote == "crashed\n"


def test_a_command_gets_allowed_environment_variables_and_no_secrets(tmp_path: Path) -> None:
    script = "import os; print(*sorted(os.environ))"
    secrets = {"HF_TOKEN": "x", "VLLM_API_KEY": "x", "NOTIFY_SOCKET": "/x", "AWS_SECRET": "x"}
    names = deliver(script, tmp_path, HOME="/", https_proxy="http://p", **secrets).split()

    assert {"HOME", "PATH", "https_proxy"} <= set(names)
    assert secrets.keys().isdisjoint(names)


def test_the_error_of_a_failed_command_has_its_exit_code_and_log_path(tmp_path: Path) -> None:
    with pytest.raises(HookError, match=r"ended with exit code 3; see .*hook\.log"):
        deliver("import sys; sys.exit(3)", tmp_path)


def test_a_command_past_its_deadline_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 300 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(HookError, match="took more than 1 s"):
        run(("sh", "-c", script), tmp_path, 1.0)

    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("leaving", ["setsid", "env -i setsid"])
def test_a_child_in_another_session_is_killed_with_its_timed_out_command(
    tmp_path: Path, leaving: str
) -> None:
    script = f"{leaving} sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' & wait"
    with pytest.raises(HookError, match="took more than 1 s"):
        run(("sh", "-c", script), tmp_path, 1.0)

    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_child_left_behind_in_another_session_is_killed_after_its_command(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    run(
        ("sh", "-c", f"setsid sh -c 'echo $$ > {started}; exec sleep 300' & cat {started}"),
        tmp_path,
        30.0,
    )

    assert is_gone(int((tmp_path / "hook.log").read_text()))


def test_the_kept_output_of_a_command_is_limited_to_a_megabyte(tmp_path: Path) -> None:
    """Further output is read and discarded: a command that then ends with code 0 has succeeded."""
    log = tmp_path / "hook.log"
    with pytest.raises(HookError, match=r"took more than 1 s"):
        run(("yes",), tmp_path, 1.0)

    assert log.read_text() == ""
    kept = (tmp_path / "hook.log.1").read_text()
    assert kept.startswith("y\ny\n")
    assert kept.endswith("\n… (cut after 1000000 bytes)\n")
    assert len(kept) < 1_000_100

    assert run(("head", "-c", "1100000", "/dev/zero"), tmp_path, 30.0) == ""


class Receiver(ThreadingHTTPServer):
    """A server that records posts and answers with a given status, or not at all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.status = 204
        self.got: list[tuple[str, str | None, bytes]] = []
        self.silent = threading.Event()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Authorization"], body))
        if self.server.silent.is_set():
            self.server.over.wait(30)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.over.set()
        server.shutdown()
        serving.join()


def post(url: str, seconds: float = 30.0) -> None:
    asyncio.run(PostDelivery(url, seconds).deliver(b'{"event": "crashed"}\n'))


def test_a_post_uses_the_path_query_and_credentials_of_its_url(receiver: Receiver) -> None:
    url = receiver.url.replace("//", "//me:pass%40word@")
    post(f"{url}/services/secret?room=7")

    ((path, authorization, body),) = receiver.got
    assert path == "/services/secret?room=7"
    assert authorization == "Basic bWU6cGFzc0B3b3Jk"
    assert json.loads(body) == {"event": "crashed"}


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_status_other_than_2xx_is_an_error_that_names_only_the_host(
    receiver: Receiver, status: int
) -> None:
    receiver.status = status
    with pytest.raises(HookError) as caught:
        post(f"{receiver.url}/services/secret")

    assert str(caught.value) == f"127.0.0.1 answers {status}"


def test_a_post_without_an_answer_fails_at_the_deadline(receiver: Receiver) -> None:
    receiver.silent.set()

    with pytest.raises(HookError, match=r"did not answer within 0\.2 s"):
        post(receiver.url, 0.2)


def test_a_post_that_timed_out_during_name_resolution_is_not_sent_later(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, look_up = threading.Event(), socket.getaddrinfo

    def slowly(*arguments: Any) -> Any:
        looked_up.wait(30)
        return look_up(*arguments)

    monkeypatch.setattr(post_delivery, "_THREADS", 1)
    monkeypatch.setattr(socket, "getaddrinfo", slowly)

    async def story() -> None:
        delivery = PostDelivery(receiver.url, 0.1)
        for _ in range(2):
            with pytest.raises(HookError, match="did not answer"):
                await delivery.deliver(b"given up")
        delivery._deadline_seconds = 30.0
        looked_up.set()
        await delivery.deliver(b"sent")

    asyncio.run(story())
    assert [body for _, _, body in receiver.got] == [b"sent"]


def test_a_refused_connection_is_an_error() -> None:
    with pytest.raises(HookError, match="Connection refused"):
        post(f"http://127.0.0.1:{free_port()}")


class Slow:
    """A delivery that waits for the test."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[bytes] = asyncio.Queue()
        self.goes_on = asyncio.Semaphore(0)
        self.fails = False

    async def deliver(self, data: bytes) -> None:
        self.begun.put_nowait(data)
        await self.goes_on.acquire()
        if self.fails:
            raise RuntimeError("a defect")


def test_failures_are_delivered_one_by_one_and_the_queue_is_bounded() -> None:
    async def story() -> None:
        slow = Slow()
        hook = FailureNotifier(slow, ["crashed"], "n", "c", LOG)
        running = asyncio.create_task(hook.run())
        hook.notify(FAILURE)
        await slow.begun.get()
        for _ in range(MOST_WAITING + 5):
            hook.notify(FAILURE)
        # The one under way does not make room for another.
        await asyncio.sleep(0)
        assert slow.begun.empty()
        assert hook.counts() == {"delivered": 0, "failed": 0, "dropped": 5}
        slow.fails = True
        slow.goes_on.release()
        await slow.begun.get()
        assert hook.counts()["failed"] == 1
        assert not hook.collectors()[0].success
        slow.fails = False
        slow.goes_on.release()
        await slow.begun.get()
        assert hook.counts()["delivered"] == 1
        assert hook.collectors()[0].success
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


def test_the_newest_failures_are_kept_in_their_order() -> None:
    async def story() -> list[str]:
        slow = Slow()
        hook = FailureNotifier(slow, ["crashed"], "n", "c", LOG)
        for number in range(MOST_WAITING + 5):
            hook.notify(replace(FAILURE, worker=f"w{number}"))
        running = asyncio.create_task(hook.run())
        delivered = []
        for _ in range(MOST_WAITING):
            delivered.append(json.loads(await slow.begun.get())["worker"])
            slow.goes_on.release()
        assert slow.begun.empty()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return delivered

    assert asyncio.run(story()) == [f"w{number}" for number in range(5, MOST_WAITING + 5)]


def test_failures_of_unselected_kinds_or_without_a_hook_are_not_queued() -> None:
    async def story() -> None:
        hook = FailureNotifier(Slow(), ["failed"], "n", "c", LOG)
        hook.notify(FAILURE)
        assert hook._waiting.empty()

        none = FailureNotifier(None, [], "n", "c", LOG)
        none.notify(FAILURE)
        assert (none.counts(), none.collectors()) == ({}, ())

    asyncio.run(story())
