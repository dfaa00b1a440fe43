"""What is left of a worker is found by more than its pid, and nobody else is touched."""

import os
import shutil
import signal
import subprocess
import sys
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
    Ear,
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
    """Starts a program, whose session ends with the test, however that ends."""
    started: list[ChildProcess] = []

    def begin(*argv: str) -> ChildProcess:
        child = start(argv, dict(os.environ), log)
        started.append(child)
        # At the very moment of its exec a process has no arguments yet.
        arguments_of, end = Path(f"/proc/{child.pid}/cmdline"), time.monotonic() + 10
        while not arguments_of.read_bytes() and time.monotonic() < end:
            time.sleep(0.001)  # the kernel tells nobody of an exec
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


def leave(run: Callable[..., ChildProcess], ear: Ear, output: str) -> tuple[ChildProcess, int]:
    """A session without its leader; the other process that is left in it."""
    child = run(LEAVES, str(ear.path), output)
    left = int(ear.line())
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


def test_a_pid_that_was_used_again_is_nobody(run: Callable[..., ChildProcess], log: Path) -> None:
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
    run: Callable[..., ChildProcess], log: Path
) -> None:
    child = run("pass")
    assert wait_readable(child.pidfd)
    before = descriptors()

    assert procfs.start_ticks(child.pid) == child.start_ticks
    assert find(entry(log, child)).presence is Presence.GONE
    assert descriptors() == before


def test_those_left_in_a_session_without_its_leader_are_found_by_its_log(
    run: Callable[..., ChildProcess], ear: Ear, log: Path
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
    run: Callable[..., ChildProcess], ear: Ear, log: Path
) -> None:
    leader, left = leave(run, ear, "elsewhere")
    before = descriptors()

    assert find(entry(log, leader)).presence is Presence.GONE
    assert procfs.is_alive(left)
    assert descriptors() == before


def test_those_left_behind_a_dead_leader_that_nobody_buries_are_found(
    run: Callable[..., ChildProcess], ear: Ear, log: Path
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


def test_one_that_is_older_than_the_start_that_was_meant_is_not_it(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    child = run(SLEEPS)

    assert find(entry(log, start_ticks=child.start_ticks + 1)).presence is Presence.GONE


@pytest.mark.parametrize("presence", [Presence.RUNNING, Presence.GONE])
def test_a_successor_that_could_not_be_written_down_is_found_by_log_and_arguments(
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


def test_an_interpreter_before_the_arguments_is_no_difference(
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


def test_one_that_does_not_lead_its_session_is_not_a_worker(
    run: Callable[..., ChildProcess], ear: Ear, log: Path
) -> None:
    child = run(LEAVES, str(ear.path), "log")
    left = int(ear.line())
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
    """What becomes of a log under a running engine."""
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
def test_a_worker_whose_log_is_gone_is_found_by_where_it_still_writes(
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


def test_an_engine_with_a_title_of_its_own_is_found_by_log_and_port(
    log_of_its_own: Path, ear: Ear
) -> None:
    port, log = free_port(), log_of_its_own
    serves = SERVER.replace(
        "while True:", "print('up', file=open(sys.argv[3], 'w'))\nwhile True:", 1
    )
    argv = [*PYTHON, OVERWRITES + serves.replace("sys.argv", "ARGV"), str(port), "m", str(ear.path)]
    argv[len(PYTHON)] = "import sys\nARGV = list(sys.argv)\n" + argv[len(PYTHON)]
    child = start(argv, os.environ | {WORKER_MARK: str(log)}, log)
    try:
        assert ear.line() == "up"
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
def test_those_left_by_a_leader_are_found_when_their_log_has_been_moved(
    run: Callable[..., ChildProcess], ear: Ear, log: Path, how: str
) -> None:
    leader, left = leave(run, ear, "log")
    take_away(log, how)

    found = find(entry(log, leader))
    assert found.presence is Presence.LEFTOVER
    assert found.child is not None
    assert found.child.survivors() == (left,)
    assert found.child.signal_group(signal.SIGKILL)
    assert is_gone(left)
    found.child.reap()


def test_a_helper_in_another_session_is_what_is_left_of_a_worker(log: Path, ear: Ear) -> None:
    script = LEAVES.replace("if sys.argv[2]", "os.setsid()\n    if sys.argv[2]")
    argv = [*PYTHON, script, str(ear.path), "elsewhere"]
    child = start(argv, os.environ | {WORKER_MARK: str(log)}, log)
    helper = int(ear.line())
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


def test_the_worker_of_a_container_is_not_ours_though_all_its_names_are_the_same(
    tmp_path: Path, ear: Ear, mount_apart: tuple[str, ...]
) -> None:
    state = tmp_path / "state"
    log = state / "run" / "logs" / "w.log"
    log.parent.mkdir(parents=True)
    argv = (*PYTHON, CONTAINED, str(state / "run"), str(ear.path))
    marked = os.environ | {WORKER_MARK: str(log)}
    ours = start([*PYTHON, SLEEPS], marked, log)
    theirs = start([*mount_apart, str(state), *argv], marked, tmp_path / "other.log")
    try:
        assert ear.line() == str(theirs.pid)
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


def test_an_engine_that_loads_and_has_no_log_is_found_by_arguments_and_mark(tmp_path: Path) -> None:
    """The disk was full when it was started, and its daemon was killed before it listened."""
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


def test_an_engine_started_by_hand_with_all_that_is_printed_of_a_worker_is_not_the_worker(
    tmp_path: Path, ear: Ear
) -> None:
    """`config check` prints arguments and variables for people to use."""
    folder = RunFolder(tmp_path / "run")
    log = folder.log("w")
    serves = "import sys\n" + SERVER.replace(
        "while True:", "print('up', file=open(sys.argv[3], 'w'))\nwhile True:", 1
    )
    port = free_port()
    argv = (*PYTHON, serves, str(port), "m", str(ear.path))
    printed = os.environ | {"DISAGG_STEPS_SOCKET": str(folder.socket("w"))}
    ours = start([*PYTHON, SLEEPS], os.environ | {WORKER_MARK: str(log)}, log)
    by_hand = start(argv, printed, tmp_path / "shell.log")
    try:
        assert ear.line() == "up"
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


def test_we_ourselves_are_nobodys_worker_whatever_a_journal_says(log: Path) -> None:
    ticks = procfs.start_ticks(os.getpid())

    assert find(entry(log, None, pid=os.getpid(), start_ticks=ticks)).presence is Presence.GONE


def test_what_a_process_runs_and_where_it_lives_is_told_by_the_kernel() -> None:
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


def test_a_process_that_was_found_is_in_no_restart_that_was_asked_of_the_one_before() -> None:
    draining = Lifecycle(
        WorkerState.DRAINING, Presence.RUNNING, 3, last_signal=signal.SIGTERM, restarting=True
    )
    found = unrecorded_life(draining, 5)

    assert (found.state, found.generation, found.last_signal) == (WorkerState.STARTING, 4, None)
    assert not found.restarting
