"""What is left of a worker is found by more than its pid, and nobody else is touched."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_cluster import procfs
from disagg_cluster.adoption import find, find_unrecorded, is_there
from disagg_cluster.command import Command
from disagg_cluster.journal_text import Entry, Tag, digest
from disagg_cluster.life import Life, Presence, WorkerState
from disagg_cluster.worker import Child, start
from support.children import PYTHON, Ear, descriptors, is_gone, wait_readable

SLEEPS = "import signal; signal.pause()"
LEAVES = """
import os, signal, sys
if os.fork() == 0:
    if sys.argv[2] == "elsewhere":
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "w.log"


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    ear = Ear(tmp_path)
    yield ear
    ear.close()


@pytest.fixture
def run(log: Path) -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def run(script: str, *arguments: str) -> Child:
        child = start([*PYTHON, script, *arguments], dict(os.environ), log)
        started.append(child)
        # At the very moment of its exec a process has no arguments yet.
        arguments_of, end = Path(f"/proc/{child.pid}/cmdline"), time.monotonic() + 10
        while not arguments_of.read_bytes() and time.monotonic() < end:
            time.sleep(0.001)  # the kernel tells nobody of an exec
        return child

    yield run
    for child in started:
        child.signal_group(signal.SIGKILL)
        if child.pidfd >= 0:
            assert wait_readable(child.pidfd)
        child.reap()


def entry(log: Path, child: Child | None = None, **changes: object) -> Entry:
    command = Command((*PYTHON, SLEEPS), {})
    told = {
        "worker": "w",
        "life": Life(WorkerState.READY, Presence.RUNNING, incarnation=1),
        "pid": None if child is None else child.pid,
        "start_ticks": procfs.now_ticks() if child is None else child.start_ticks,
        "argv": command.argv,
        "environment": digest(command),
        "log_path": str(log),
        "log_start_bytes": 3,
        "started_timestamp_seconds": 1.0,
        "tag": Tag(),
        "drain_seconds": 1.0,
        "stop_seconds": 1.0,
    }
    return Entry(**(told | changes))  # type: ignore[arg-type]


def leave(run: Callable[..., Child], ear: Ear, output: str) -> tuple[Child, int]:
    """A session without its leader; the other process that is left in it."""
    child = run(LEAVES, str(ear.path), output)
    left = int(ear.line())
    assert wait_readable(child.pidfd)
    os.waitpid(child.pid, 0)
    assert procfs.start_ticks(child.pid) is None
    return child, left


def test_a_living_process_is_found_and_can_be_ended(run: Callable[..., Child], log: Path) -> None:
    child = run(SLEEPS)

    found = find(entry(log, child))
    assert found.presence is Presence.RUNNING
    assert found.child is not None
    assert found.child.log_start_bytes == 3
    assert found.child.signal_group(signal.SIGTERM)
    assert wait_readable(found.child.pidfd)
    found.child.let_go()


def test_a_pid_that_was_used_again_is_nobody(run: Callable[..., Child], log: Path) -> None:
    child = run(SLEEPS)
    before = descriptors()

    recycled = entry(log, child, start_ticks=child.start_ticks - 1, argv=("other",))
    assert find(recycled).presence is Presence.GONE
    assert procfs.is_alive(child.pid)
    assert descriptors() == before


def test_a_pid_that_is_not_there_any_more_is_gone(log: Path) -> None:
    assert find(entry(log, None, pid=2**22 + 1)).presence is Presence.GONE
    assert not is_there(entry(log, None, pid=2**22 + 1))


def test_a_dead_leader_that_nobody_buries_is_no_process(
    run: Callable[..., Child], log: Path
) -> None:
    child = run("pass")
    assert wait_readable(child.pidfd)
    before = descriptors()

    assert procfs.start_ticks(child.pid) == child.start_ticks
    assert find(entry(log, child)).presence is Presence.GONE
    assert descriptors() == before


def test_those_left_in_a_session_without_its_leader_are_found_by_its_log(
    run: Callable[..., Child], ear: Ear, log: Path
) -> None:
    leader, left = leave(run, ear, "log")

    found = find(entry(log, leader))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (left,)
    assert found.child.signal_group(signal.SIGKILL)
    assert is_gone(left)
    found.child.reap()
    assert found.child.pidfd == -1


def test_a_session_whose_number_proves_nothing_is_left_alone(
    run: Callable[..., Child], ear: Ear, log: Path
) -> None:
    leader, left = leave(run, ear, "elsewhere")
    before = descriptors()

    assert find(entry(log, leader)).presence is Presence.GONE
    assert procfs.is_alive(left)
    assert descriptors() == before


def test_those_left_behind_a_dead_leader_that_nobody_buries_are_found(
    run: Callable[..., Child], ear: Ear, log: Path
) -> None:
    child = run(LEAVES, str(ear.path), "elsewhere")
    left = int(ear.line())
    assert wait_readable(child.pidfd)

    found = find(entry(log, child))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (left,)
    found.child.let_go()


def test_a_start_that_was_only_meant_is_found_by_its_log(
    run: Callable[..., Child], log: Path
) -> None:
    meant = entry(log)
    assert find(meant).presence is Presence.GONE

    child = run("import signal; signal.pause()  # whatever it runs")
    found = find(meant)
    assert (found.presence, found.recorded) == (Presence.RUNNING, True)
    assert found.child is not None
    assert found.child.pid == child.pid
    assert is_there(meant)
    found.child.let_go()


def test_one_that_is_older_than_the_start_that_was_meant_is_not_it(
    run: Callable[..., Child], log: Path
) -> None:
    child = run(SLEEPS)

    assert find(entry(log, start_ticks=child.start_ticks + 1)).presence is Presence.GONE


@pytest.mark.parametrize("presence", [Presence.RUNNING, Presence.GONE])
def test_a_successor_that_could_not_be_written_down_is_found_by_log_and_arguments(
    run: Callable[..., Child], log: Path, presence: Presence
) -> None:
    life = Life(WorkerState.BACKOFF, presence, incarnation=1)
    old = entry(log, None, pid=2**22 + 1, life=life)
    child = run(SLEEPS)

    found = find(old)
    assert (found.presence, found.recorded) == (Presence.RUNNING, False)
    assert found.child is not None
    assert found.child.pid == child.pid
    found.child.let_go()
    assert find(old.model_copy(update={"argv": ("other",)})).presence is Presence.GONE


def test_an_interpreter_before_the_arguments_is_no_difference(log: Path, tmp_path: Path) -> None:
    script = tmp_path / "engine"
    os.mkfifo(tmp_path / "silence")
    script.write_text(f"#!/bin/sh\nread nothing < {tmp_path}/silence\n")
    script.chmod(0o755)
    child = start([str(script), "--port", "1"], dict(os.environ), log)

    found = find_unrecorded(log, 0, (str(script), "--port", "1"))
    assert found.child is not None
    assert found.child.pid == child.pid
    found.child.let_go()
    child.signal_group(signal.SIGKILL)
    assert wait_readable(child.pidfd)
    child.reap()


def test_one_that_does_not_lead_its_session_is_not_a_worker(
    run: Callable[..., Child], ear: Ear, log: Path
) -> None:
    child = run(LEAVES, str(ear.path), "log")
    left = int(ear.line())
    assert wait_readable(child.pidfd)

    assert procfs.writes(left, log.stat())
    assert procfs.leaders_writing(log) == ()


def test_what_a_process_runs_and_where_it_lives_is_told_by_the_kernel() -> None:
    assert procfs.command_line(os.getpid())[0].endswith(Path(sys.executable).name)
    assert procfs.command_line(2**22 + 1) == ()
    assert procfs.session_of(2**22 + 1) is None
    assert not procfs.writes(2**22 + 1, Path(__file__).stat())
    assert procfs.leaders_writing(Path("/nowhere")) == ()
    assert procfs.boot_id()
    assert procfs.pid_namespace().startswith("pid:[")
    mine = procfs.start_ticks(os.getpid())
    assert mine is not None
    assert 0 < mine <= procfs.now_ticks()
