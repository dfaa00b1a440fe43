"""A daemon that lacks readers or descriptors keeps its workers; one it cannot end, it names."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster import procfs
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.headroom import RESERVED_DESCRIPTORS
from support.running_node import Page, RunningNode
from support.two_planes import standin_node, wait_until

SECONDS = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield Path(name)


@contextlib.contextmanager
def daemon(folder: Path, output: int | None = None, **deadlines: float) -> Iterator[RunningNode]:
    """A daemon with two workers; none of them is left behind, whatever becomes of it."""
    file: dict[str, Any] = standin_node(folder)
    for worker in file["workers"]:
        worker["deadlines"] = worker["deadlines"] | deadlines
    file["restart"] = {"backoff_first_seconds": 0.1, "backoff_max_seconds": 0.1}
    running = RunningNode(file, folder, output)
    try:
        running.wait_ready()
        yield running
    except BaseException:
        running.tell_logs()
        raise
    finally:
        running.process.kill()
        running.process.wait(SECONDS)
        running._log.close()
        for name in running.workers:
            for pid in procfs.leaders_writing(folder / "run" / "logs" / f"{name}.log"):
                os.killpg(pid, signal.SIGKILL)


def leader(folder: Path, worker: str) -> int:
    [pid] = procfs.leaders_writing(folder / "run" / "logs" / f"{worker}.log")
    return pid


def page(running: RunningNode) -> Page | None:
    """What is served; None where nothing is just now."""
    try:
        return running.page()
    except DisaggError:
        return None


def serves_again(running: RunningNode, worker: str, restarts: int = 1) -> bool:
    shown = page(running)
    return (
        shown is not None
        and shown.sum("disagg_worker_restarts_total", worker=worker) == restarts
        and shown.sum("disagg_worker_state", worker=worker, state="ready") == 1
    )


def test_output_that_nobody_reads_holds_nothing_up(folder: Path) -> None:
    """Standard output and error are a pipe that is full from the beginning."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b".")
    os.set_blocking(writer, True)
    try:
        with daemon(folder, writer) as running:
            first = leader(folder, "decode-0")
            os.kill(first, signal.SIGKILL)
            wait_until("a restart", lambda: serves_again(running, "decode-0"), SECONDS)

            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(SECONDS) == 0
            assert procfs.leaders_writing(folder / "run" / "logs" / "decode-0.log") == ()
    finally:
        os.close(reader)
        os.close(writer)


def test_more_page_clients_than_descriptors_keep_no_dead_worker_dead(folder: Path) -> None:
    with daemon(folder) as running, contextlib.ExitStack() as stack:
        _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (64, hard))
        host, _, port = running.page_url.removeprefix("http://").partition("/")[0].partition(":")
        for _ in range(80):
            stack.enter_context(socket.create_connection((host, int(port)), 5))
        held = Path("/proc") / str(running.process.pid) / "fd"
        few = 64 - RESERVED_DESCRIPTORS + 4  # what the daemon opens for a moment itself
        wait_until("clients to leave some", lambda: len(list(held.iterdir())) <= few, SECONDS)
        first = leader(folder, "decode-0")
        os.kill(first, signal.SIGKILL)

        def another() -> bool:
            found = procfs.leaders_writing(folder / "run" / "logs" / "decode-0.log")
            return found not in ((), (first,))

        wait_until("a successor, while the clients stay", another, 8.0)
        stack.close()
        wait_until("it to serve", lambda: serves_again(running, "decode-0"), SECONDS)


FREEZER = Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that nothing ends, not even SIGKILL, until the block does."""
    group = Path(tempfile.mkdtemp(dir=FREEZER))
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait_until("it to end", lambda: not (group / "cgroup.procs").read_text(), SECONDS)
        group.rmdir()


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs a freezer of control groups")
def test_a_daemon_whose_worker_cannot_be_ended_says_so_and_ends_by_its_own_code(
    folder: Path,
) -> None:
    with daemon(folder, drain_seconds=0.1, stop_seconds=0.1) as running:
        stuck = leader(folder, "decode-0")
        with frozen(stuck):
            running.process.send_signal(signal.SIGINT)
            wait_until("it to be asked", lambda: "asked to stop" in running.log(), SECONDS)
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(SECONDS) == 6
        said = running.log()
        assert f"  decode-0 (pid {stuck}): " in said
        assert "Traceback" not in said
