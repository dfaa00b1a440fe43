"""Processes of a worker are found by more than its pid, and foreign ones are left alone."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import (
    WORKER_MARK,
    leaders_writing,
    log_place,
    mark_of,
    writes_log,
)
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.lifecycle.state import (
    LaunchCommand,
    Lifecycle,
    Presence,
    WorkerIdentity,
    WorkerState,
)
from disagg_cluster.supervisor.journal.journal_text import Entry, digest
from disagg_cluster.supervisor.ownership.adoption import (
    WorkerFingerprint,
    find,
    find_unrecorded,
    is_there,
    unrecorded_life,
)
from disagg_cluster.supervisor.ownership.run_folders import unrecorded
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from support.children import (
    PYTHON,
    SERVER,
    LinePipe,
    descriptors,
    free_port,
    is_gone,
    wait_readable,
)

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
def begin(log: Path) -> Iterator[Callable[..., ChildProcess]]:
    """Start a program whose session is killed at the end of the test."""
    started: list[ChildProcess] = []

    def begin(*argv: str) -> ChildProcess:
        child = start(argv, dict(os.environ), log)
        started.append(child)
        # At the very moment of its exec a process has no arguments yet.
        arguments_of, end = Path(f"/proc/{child.pid}/cmdline"), time.monotonic() + 10
        while not arguments_of.read_bytes() and time.monotonic() < end:
            time.sleep(0.001)  # the kernel does not notify of an exec
        return child

    yield begin
    for child in started:
        child.signal_group(signal.SIGKILL)
        if child.pidfd >= 0:
            assert wait_readable(child.pidfd)
        child.reap()


@pytest.fixture
def run(begin: Callable[..., ChildProcess]) -> Callable[..., ChildProcess]:
    """As `begin`, a script for Python."""
    return partial(begin, *PYTHON)


def entry(log: Path, child: ChildProcess | None = None, **changes: object) -> Entry:
    command = LaunchCommand((*PYTHON, SLEEPS), {})
    told = {
        "worker": "w",
        "life": Lifecycle(WorkerState.READY, Presence.RUNNING, generation=1),
        "pid": None if child is None else child.pid,
        "start_ticks": procfs.now_ticks() if child is None else child.start_ticks,
        "argv": command.argv,
        "environment": digest(command),
        "log_path": str(log),
        "log_start_bytes": 3,
        "started_timestamp_seconds": 1.0,
        "tag": WorkerIdentity(),
        "drain_seconds": 1.0,
        "stop_seconds": 1.0,
    }
    return Entry(**(told | changes))  # type: ignore[arg-type]


def leave(
    run: Callable[..., ChildProcess], pipe: LinePipe, output: str
) -> tuple[ChildProcess, int]:
    """A session without its leader; the other process that is left in it."""
    child = run(LEAVES, str(pipe.path), output)
    left = int(pipe.line())
    assert wait_readable(child.pidfd)
    os.waitpid(child.pid, 0)
    assert procfs.start_ticks(child.pid) is None
    return child, left


def test_a_living_process_is_found_and_can_be_ended(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    child = run(SLEEPS)

    found = find(entry(log, child))
    assert found.presence is Presence.RUNNING
    assert found.child is not None
    assert found.child.log_start_bytes == 3
    assert found.child.signal_group(signal.SIGTERM)
    assert wait_readable(found.child.pidfd)
    found.child.let_go()


def test_a_reused_pid_is_gone_and_not_the_worker(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    child = run(SLEEPS)
    before = descriptors()

    recycled = entry(log, child, start_ticks=child.start_ticks - 1, argv=("other",))
    assert find(recycled).presence is Presence.GONE
    assert procfs.is_alive(child.pid)
    assert descriptors() == before


def test_a_nonexistent_pid_is_gone(log: Path) -> None:
    assert find(entry(log, None, pid=2**22 + 1)).presence is Presence.GONE
    assert not is_there(entry(log, None, pid=2**22 + 1))


def test_a_pid_that_a_thread_has_now_is_gone(log: Path) -> None:
    over, number = threading.Event(), queue.SimpleQueue[int]()

    def wait() -> None:
        number.put(threading.get_native_id())
        over.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        pid = number.get()
        ticks = procfs.start_ticks(pid)
        assert procfs.open_pidfd(pid) is None
        assert find(entry(log, None, pid=pid, start_ticks=ticks)).presence is Presence.GONE
    finally:
        over.set()
        thread.join()


def test_an_unreaped_dead_leader_is_gone(run: Callable[..., ChildProcess], log: Path) -> None:
    child = run("pass")
    assert wait_readable(child.pidfd)
    before = descriptors()

    assert procfs.start_ticks(child.pid) == child.start_ticks
    assert find(entry(log, child)).presence is Presence.GONE
    assert descriptors() == before


def test_leftovers_in_a_session_without_its_leader_are_found_by_their_log(
    run: Callable[..., ChildProcess], pipe: LinePipe, log: Path
) -> None:
    leader, left = leave(run, pipe, "log")

    found = find(entry(log, leader))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (left,)
    assert found.child.signal_group(signal.SIGKILL)
    assert is_gone(left)
    found.child.reap()
    assert found.child.pidfd == -1


def test_a_session_known_only_by_its_number_is_left_alone(
    run: Callable[..., ChildProcess], pipe: LinePipe, log: Path
) -> None:
    leader, left = leave(run, pipe, "elsewhere")
    before = descriptors()

    assert find(entry(log, leader)).presence is Presence.GONE
    assert procfs.is_alive(left)
    assert descriptors() == before


def test_leftovers_of_an_unreaped_dead_leader_are_found(
    run: Callable[..., ChildProcess], pipe: LinePipe, log: Path
) -> None:
    child = run(LEAVES, str(pipe.path), "elsewhere")
    left = int(pipe.line())
    assert wait_readable(child.pidfd)

    found = find(entry(log, child))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (left,)
    found.child.let_go()


def test_a_start_recorded_without_a_pid_is_found_by_its_log(
    run: Callable[..., ChildProcess], log: Path
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


def test_a_process_older_than_the_recorded_start_is_not_the_worker(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    child = run(SLEEPS)

    assert find(entry(log, start_ticks=child.start_ticks + 1)).presence is Presence.GONE


@pytest.mark.parametrize("presence", [Presence.RUNNING, Presence.GONE])
def test_an_unrecorded_successor_is_found_by_log_and_arguments(
    run: Callable[..., ChildProcess], log: Path, presence: Presence
) -> None:
    life = Lifecycle(WorkerState.BACKOFF, presence, generation=1)
    old = entry(log, None, pid=2**22 + 1, life=life)
    child = run(SLEEPS)

    found = find(old)
    assert (found.presence, found.recorded) == (Presence.RUNNING, False)
    assert found.child is not None
    assert found.child.pid == child.pid
    found.child.let_go()
    assert find(old.model_copy(update={"argv": ("other",)})).presence is Presence.GONE


def test_an_interpreter_before_the_arguments_does_not_matter(
    begin: Callable[..., ChildProcess], log: Path, tmp_path: Path
) -> None:
    script = tmp_path / "engine"
    os.mkfifo(tmp_path / "silence")
    script.write_text(f"#!/bin/sh\nread nothing < {tmp_path}/silence\n")
    script.chmod(0o755)
    child = begin(str(script), "--port", "1")

    found = find_unrecorded(WorkerFingerprint(log, (str(script), "--port", "1"), "127.0.0.1", 0))
    assert found.child is not None
    assert found.child.pid == child.pid
    found.child.let_go()


def test_a_process_that_does_not_lead_its_session_is_not_a_worker(
    run: Callable[..., ChildProcess], pipe: LinePipe, log: Path
) -> None:
    child = run(LEAVES, str(pipe.path), "log")
    left = int(pipe.line())
    assert wait_readable(child.pidfd)

    assert writes_log(left, log_place(log))
    assert leaders_writing(log) == ()


OVERWRITES = """
import ctypes, ctypes.util, os, signal, sys
# As setproctitle does: arguments and environment are one piece of memory.
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[45]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
ctypes.memmove(begin, b"VLLM::APIServer", 15)
"""


def sought(
    log: Path, port: int = 0, argv: tuple[str, ...] = (*PYTHON, SLEEPS)
) -> WorkerFingerprint:
    return WorkerFingerprint(log, argv, "127.0.0.1", port)


def take_away(log: Path, how: str) -> None:
    """Delete or move the log of a running engine."""
    if how == "deleted":
        log.unlink()
    elif how == "folder deleted":
        shutil.rmtree(log.parent)
    elif how == "moved":
        log.rename(log.with_name(f"{log.name}.1"))
    else:
        log.rename(log.with_name(f"{log.name}.1"))
        log.touch()


LOST = pytest.mark.parametrize("how", ["deleted", "folder deleted", "moved", "moved and made anew"])


@pytest.fixture
def log_of_its_own(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "w.log"


@LOST
def test_a_worker_with_a_lost_log_is_found_by_its_open_log_file(
    log_of_its_own: Path, how: str
) -> None:
    log = log_of_its_own
    child = start([*PYTHON, SLEEPS], dict(os.environ), log)
    try:
        while procfs.command_line(child.pid)[-1:] != (SLEEPS,):
            os.sched_yield()
        take_away(log, how)
        found = find_unrecorded(sought(log))
        assert found.child is not None
        assert (found.child.pid, found.recorded) == (child.pid, False)
        found.child.let_go()
        assert find_unrecorded(sought(log, argv=("other",))).child is None
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
        child.reap()


def test_an_engine_with_a_changed_process_title_is_found_by_log_and_port(
    log_of_its_own: Path, pipe: LinePipe
) -> None:
    port, log = free_port(), log_of_its_own
    serves = SERVER.replace(
        "while True:", "print('up', file=open(sys.argv[3], 'w'))\nwhile True:", 1
    )
    argv = [
        *PYTHON,
        OVERWRITES + serves.replace("sys.argv", "ARGV"),
        str(port),
        "m",
        str(pipe.path),
    ]
    argv[len(PYTHON)] = "import sys\nARGV = list(sys.argv)\n" + argv[len(PYTHON)]
    child = start(argv, os.environ | {WORKER_MARK: str(log)}, log)
    try:
        assert pipe.line() == "up"
        assert procfs.command_line(child.pid)[:1] == ("VLLM::APIServer",)
        assert mark_of(child.pid) == ""
        take_away(log, "folder deleted")

        found = find_unrecorded(sought(log, port))
        assert found.child is not None
        assert found.child.pid == child.pid
        found.child.let_go()
        assert find_unrecorded(sought(log, free_port())).child is None
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
        child.reap()


@pytest.mark.parametrize("how", ["deleted", "moved and made anew"])
def test_leftovers_of_a_leader_are_found_after_their_log_was_moved_or_deleted(
    run: Callable[..., ChildProcess], pipe: LinePipe, log: Path, how: str
) -> None:
    leader, left = leave(run, pipe, "log")
    take_away(log, how)

    found = find(entry(log, leader))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (left,)
    assert found.child.signal_group(signal.SIGKILL)
    assert is_gone(left)
    found.child.reap()


def test_a_marked_helper_in_another_session_is_a_leftover_of_its_worker(
    log: Path, pipe: LinePipe
) -> None:
    script = LEAVES.replace("if sys.argv[2]", "os.setsid()\n    if sys.argv[2]")
    argv = [*PYTHON, script, str(pipe.path), "elsewhere"]
    child = start(argv, os.environ | {WORKER_MARK: str(log)}, log)
    helper = int(pipe.line())
    assert wait_readable(child.pidfd)
    os.waitpid(child.pid, 0)

    found = find(entry(log, child))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (helper,)
    assert found.child.signal_group(signal.SIGKILL)
    assert is_gone(helper)
    found.child.reap()
    child.let_go()


CONTAINED = """
import os, signal, sys
from pathlib import Path
run = Path(sys.argv[1])
(run / "logs").mkdir(parents=True)
os.dup2(os.open(run / "logs" / "w.log", os.O_WRONLY | os.O_CREAT), 1)
print(os.getpid(), file=open(sys.argv[2], "w"), flush=True)
signal.pause()
"""


@pytest.fixture
def mount_apart() -> tuple[str, ...]:
    """In front of a command: it gets a file system of its own at the path that follows."""
    apart = ("unshare", *(() if os.geteuid() == 0 else ("-r",)), "-m", "sh", "-c")
    argv = (*apart, 'mount -t tmpfs none "$0" && exec "$@"')
    if subprocess.run([*argv, "/mnt", "true"], capture_output=True, check=False).returncode:
        pytest.skip("we may mount nothing")
    return argv


def test_a_worker_of_another_container_with_identical_paths_is_foreign(
    tmp_path: Path, pipe: LinePipe, mount_apart: tuple[str, ...]
) -> None:
    state = tmp_path / "state"
    log = state / "run" / "logs" / "w.log"
    log.parent.mkdir(parents=True)
    argv = (*PYTHON, CONTAINED, str(state / "run"), str(pipe.path))
    marked = os.environ | {WORKER_MARK: str(log)}
    ours = start([*PYTHON, SLEEPS], marked, log)
    theirs = start([*mount_apart, str(state), *argv], marked, tmp_path / "other.log")
    try:
        assert pipe.line() == str(theirs.pid)
        assert Path(f"/proc/{theirs.pid}/fd/1").readlink() == log

        assert not writes_log(theirs.pid, log_place(log))
        assert ours.survivors() == ()
        assert [found.pid for found in unrecorded(RunFolder(state / "run"))] == [ours.pid]
        assert ours.signal_group(signal.SIGKILL)
        assert wait_readable(ours.pidfd)
        assert procfs.is_alive(theirs.pid)
        assert find_unrecorded(sought(log, argv=argv)).child is None
    finally:
        for child in (ours, theirs):
            child.signal_group(signal.SIGKILL)
            assert wait_readable(child.pidfd)
            child.reap()


def test_an_engine_without_log_and_port_is_found_by_arguments_and_mark(tmp_path: Path) -> None:
    """The disk was full at its start, and its daemon was killed before the engine listened."""
    log = tmp_path / "logs" / "w.log"
    child = start([*PYTHON, SLEEPS], os.environ | {WORKER_MARK: str(log)}, tmp_path / "none.log")
    try:
        while procfs.command_line(child.pid)[-1:] != (SLEEPS,):
            os.sched_yield()
        found = find_unrecorded(sought(log, free_port()))
        assert found.child is not None
        assert found.child.pid == child.pid
        found.child.let_go()
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
        child.reap()


def test_an_engine_started_by_hand_with_a_workers_command_is_not_the_worker(
    tmp_path: Path, pipe: LinePipe
) -> None:
    """`config check` prints arguments and variables for people to use."""
    folder = RunFolder(tmp_path / "run")
    log = folder.log("w")
    serves = "import sys\n" + SERVER.replace(
        "while True:", "print('up', file=open(sys.argv[3], 'w'))\nwhile True:", 1
    )
    port = free_port()
    argv = (*PYTHON, serves, str(port), "m", str(pipe.path))
    printed = os.environ | {"DISAGG_STEPS_SOCKET": str(folder.socket("w"))}
    ours = start([*PYTHON, SLEEPS], os.environ | {WORKER_MARK: str(log)}, log)
    by_hand = start(argv, printed, tmp_path / "shell.log")
    try:
        assert pipe.line() == "up"
        assert ours.survivors() == ()
        assert [found.pid for found in unrecorded(folder)] == [ours.pid]
        assert ours.signal_group(signal.SIGKILL)
        assert wait_readable(ours.pidfd)
        assert procfs.is_alive(by_hand.pid)
        assert find_unrecorded(sought(log, port, argv)).child is None
    finally:
        for child in (ours, by_hand):
            child.signal_group(signal.SIGKILL)
            assert wait_readable(child.pidfd)
            child.reap()


def test_the_daemons_own_process_is_never_taken_for_a_worker(log: Path) -> None:
    ticks = procfs.start_ticks(os.getpid())

    assert find(entry(log, None, pid=os.getpid(), start_ticks=ticks)).presence is Presence.GONE


def test_procfs_reports_command_line_session_boot_and_namespace() -> None:
    assert procfs.command_line(os.getpid())[0].endswith(Path(sys.executable).name)
    assert procfs.command_line(2**22 + 1) == ()
    assert procfs.session_of(2**22 + 1) is None
    assert not writes_log(2**22 + 1, log_place(Path(__file__)))
    assert leaders_writing(Path("/nowhere")) == ()
    assert procfs.boot_id()
    assert procfs.pid_namespace().startswith("pid:[")
    mine = procfs.start_ticks(os.getpid())
    assert mine is not None
    assert 0 < mine <= procfs.now_ticks()


def test_an_unrecorded_process_does_not_inherit_a_requested_restart() -> None:
    draining = Lifecycle(
        WorkerState.DRAINING, Presence.RUNNING, 3, last_signal=signal.SIGTERM, restarting=True
    )
    found = unrecorded_life(draining, 5)

    assert (found.state, found.generation, found.last_signal) == (WorkerState.STARTING, 4, None)
    assert not found.restarting
