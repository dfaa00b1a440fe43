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

from disagg_cluster.host.processes.process_traits import leaders_writing
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.server.admission import RESERVED_DESCRIPTORS
from support.running_node import Page, RunningNode
from support.two_planes import standin_node, wait_until

SECONDS = 30.0


@contextlib.contextmanager
def daemon(folder: Path, output: int | None = None, **deadlines: float) -> Iterator[RunningNode]:
    """A daemon with two workers; none of them is left behind, whatever becomes of it."""
    file: dict[str, Any] = standin_node(folder)
    for worker in file["workers"]:
        worker["deadlines"] = worker["deadlines"] | deadlines
    quick = {"backoff_first_seconds": 0.1, "backoff_max_seconds": 0.1}
    file["restart"] = quick | {"crash_limit": 2}
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
            for pid in leaders_writing(folder / "run" / "logs" / f"{name}.log"):
                os.killpg(pid, signal.SIGKILL)


def leader(folder: Path, worker: str) -> int:
    [pid] = leaders_writing(folder / "run" / "logs" / f"{worker}.log")
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


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """The end of a pipe that nobody reads and that takes nothing more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for piece in (b"." * 4096, b"."):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, piece)
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


def test_a_dead_worker_is_restarted_despite_blocked_output_and_exhausted_descriptors(
    folder: Path,
) -> None:
    """Output goes to a full pipe, and there are fewer file descriptors than clients."""
    with full_pipe() as output, daemon(folder, output) as running:
        _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (64, hard))
        host, _, port = running.page_url.removeprefix("http://").partition("/")[0].partition(":")
        with contextlib.ExitStack() as clients:
            for _ in range(80):
                clients.enter_context(socket.create_connection((host, int(port)), 5))
            held = Path("/proc") / str(running.process.pid) / "fd"
            few = 64 - RESERVED_DESCRIPTORS + 4  # what the daemon opens for a moment itself
            wait_until("clients to leave some", lambda: len(list(held.iterdir())) <= few, SECONDS)
            first = leader(folder, "decode-0")
            os.kill(first, signal.SIGKILL)

            def another() -> bool:
                found = leaders_writing(folder / "run" / "logs" / "decode-0.log")
                return found not in ((), (first,))

            wait_until("a successor, while the clients stay", another, 8.0)
        wait_until("it to serve", lambda: serves_again(running, "decode-0"), SECONDS)

        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
        assert leaders_writing(folder / "run" / "logs" / "decode-0.log") == ()


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
def test_a_daemon_with_an_unkillable_worker_reports_it_and_exits_with_6(
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


PIDS = Path("/sys/fs/cgroup/pids")


@contextlib.contextmanager
def no_more_threads(pid: int) -> Iterator[None]:
    """Let a process have no thread and no child more than it has now."""
    group = Path(tempfile.mkdtemp(dir=PIDS))
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text("1")
        yield
    finally:
        (PIDS / "cgroup.procs").write_text(str(pid))
        for started in (group / "cgroup.procs").read_text().split():
            (PIDS / "cgroup.procs").write_text(started)
        group.rmdir()


@pytest.mark.skipif(not os.access(PIDS, os.W_OK), reason="needs control groups that count pids")
def test_a_worker_is_not_given_up_while_no_thread_or_process_can_be_started(folder: Path) -> None:
    with daemon(folder) as running:

        def well() -> bool:
            shown = page(running)
            return (
                shown is not None
                and shown.sum("disagg_engine_up") == 2
                and shown.sum("disagg_collector_success", collector="supervision") == 1
            )

        with no_more_threads(running.process.pid):
            os.kill(leader(folder, "decode-0"), signal.SIGKILL)
            refused = "not counted as a crash"
            wait_until("refused starts", lambda: running.log().count(refused) > 2, SECONDS)
            assert "supervision: decode-0: start: " in running.log()
        wait_until("it to serve", lambda: serves_again(running, "decode-0"), SECONDS)
        wait_until("all to be well", well, SECONDS)
        assert "hangs" not in running.log()
