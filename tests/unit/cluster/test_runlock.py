"""One daemon in one run folder; the kernel frees the lock of a dead one."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.runlock import RunLock, RunLockError, holder
from disagg_cluster.worker import Child, start
from support.children import Ear, wait_readable

HOLDS = """
import os, signal, sys, time
from pathlib import Path
from disagg_cluster.runlock import RunLock
with RunLock(Path(sys.argv[1])):
    if sys.argv[3] == "forked" and os.fork() == 0:
        time.sleep(0.3)  # as a worker between fork and exec
        os._exit(0)
    print("held", file=open(sys.argv[2], "w"), flush=True)
    signal.pause()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "run" / "lock"


@pytest.fixture
def other(lock: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Child]:
    """Another process that holds the lock."""
    ear = Ear(tmp_path)
    argv = [sys.executable, "-c", HOLDS, str(lock), str(ear.path), request.param]
    child = start(argv, dict(os.environ), tmp_path / "log")
    assert ear.line() == "held"
    ear.close()
    yield child
    child.signal_group(signal.SIGKILL)
    if child.pidfd >= 0:
        assert wait_readable(child.pidfd)
        child.reap()


@pytest.mark.parametrize("other", ["plain"], indirect=True)
def test_a_second_daemon_is_refused_at_once_and_told_how_to_end_the_first(
    lock: Path, other: Child
) -> None:
    with pytest.raises(RunLockError) as refused, RunLock(lock, patience_seconds=1000):
        pass

    assert str(refused.value) == (
        f"another disagg-node (pid {other.pid}) runs in {lock.parent}; "
        f"`disagg-node stop --run-dir {lock.parent}` ends it, "
        "another run_dir in the node file lets both run"
    )
    assert holder(lock) == other.pid


@pytest.mark.parametrize("other", ["plain"], indirect=True)
def test_a_killed_daemon_leaves_the_lock_to_the_next(lock: Path, other: Child) -> None:
    os.kill(other.pid, signal.SIGKILL)
    assert wait_readable(other.pidfd)
    assert holder(lock) is None

    with RunLock(lock, patience_seconds=0):
        assert holder(lock) == os.getpid()


@pytest.mark.parametrize("other", ["forked"], indirect=True)
def test_a_child_between_fork_and_exec_is_waited_for(lock: Path, other: Child) -> None:
    os.kill(other.pid, signal.SIGKILL)
    assert wait_readable(other.pidfd)
    with (
        pytest.raises(RunLockError, match=r"^another disagg-node runs in"),
        RunLock(lock, patience_seconds=0),
    ):
        pass

    with RunLock(lock, patience_seconds=20):
        assert other.survivors() == ()


def test_a_lock_that_was_let_go_can_be_taken_again(lock: Path) -> None:
    for _ in range(2):
        with RunLock(lock, patience_seconds=0):
            pass


def test_a_lock_that_nobody_holds_names_nobody_whatever_its_file_says(lock: Path) -> None:
    with RunLock(lock, patience_seconds=0):
        assert holder(lock) == os.getpid()
    assert lock.read_text().startswith(str(os.getpid()))
    assert holder(lock) is None


def test_a_lock_file_with_a_pid_of_another_time_names_nobody(lock: Path) -> None:
    with RunLock(lock, patience_seconds=0):
        for text in ("", "x y", f"{os.getpid()}", f"{os.getpid()} 1"):
            lock.write_text(text)
            assert holder(lock) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RunLockError, match=r"^cannot use .*/file/run: Not a directory"):
        RunLock(tmp_path / "file" / "run" / "lock").__enter__()
