"""One daemon in one run folder; the kernel frees the lock of a dead one."""

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.host.run_dir.claim import flock_holder
from disagg_cluster.host.run_dir.lock import RunLock, RunLockError, holder
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from support.children import LinePipe, descriptors, wait_readable

HOLDS = """
import os, signal, sys, time
from pathlib import Path
from disagg_cluster.host.run_dir import claim
from disagg_cluster.host.run_dir.lock import RunLock
if sys.argv[3] == "with a short queue":
    claim._BACKLOG = 4
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
def other(lock: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ChildProcess]:
    """Another process that holds the lock."""
    pipe = LinePipe(tmp_path)
    argv = [sys.executable, "-c", HOLDS, str(lock), str(pipe.path), request.param]
    child = start(argv, dict(os.environ), tmp_path / "log")
    assert pipe.line() == "held"
    pipe.close()
    yield child
    child.signal_group(signal.SIGKILL)
    if child.pidfd >= 0:
        assert wait_readable(child.pidfd)
        child.reap()


@pytest.mark.parametrize("other", ["plain"], indirect=True)
def test_a_second_daemon_is_refused_with_a_remedy(lock: Path, other: ChildProcess) -> None:
    with pytest.raises(RunLockError) as refused, RunLock(lock, patience_seconds=1000):
        pass

    assert str(refused.value) == (
        f"another disagg-node (pid {other.pid}) runs in {lock.parent}; "
        f"`disagg-node stop --run-dir {lock.parent}` ends it, "
        "another run_dir in the node file lets both run"
    )
    assert holder(lock) == other.pid


@pytest.mark.parametrize("other", ["plain"], indirect=True)
def test_a_killed_daemon_leaves_the_lock_to_the_next(lock: Path, other: ChildProcess) -> None:
    os.kill(other.pid, signal.SIGKILL)
    assert wait_readable(other.pidfd)
    assert holder(lock) is None

    with RunLock(lock, patience_seconds=0):
        assert holder(lock) == os.getpid()


@pytest.mark.parametrize("other", ["forked"], indirect=True)
def test_a_child_between_fork_and_exec_is_waited_for(lock: Path, other: ChildProcess) -> None:
    os.kill(other.pid, signal.SIGKILL)
    assert wait_readable(other.pidfd)
    with (
        pytest.raises(RunLockError, match=r"^another disagg-node runs in"),
        RunLock(lock, patience_seconds=0),
    ):
        pass

    with RunLock(lock, patience_seconds=20):
        assert other.survivors() == ()


def test_a_released_lock_can_be_taken_again(lock: Path) -> None:
    for _ in range(2):
        with RunLock(lock, patience_seconds=0):
            pass


def test_a_free_lock_names_no_holder(lock: Path) -> None:
    with RunLock(lock, patience_seconds=0):
        assert holder(lock) == os.getpid()
    assert lock.read_text().startswith(str(os.getpid()))
    assert holder(lock) is None


@pytest.mark.parametrize("text", ["", "x y", "12", f"{os.getpid()}", f"{os.getpid()} 1"])
def test_a_holder_that_its_file_does_not_name_is_named_by_the_kernel(lock: Path, text: str) -> None:
    """The disk was full when it started, for example."""
    with RunLock(lock, patience_seconds=0):
        lock.write_text(text)
        assert holder(lock) == os.getpid()


def test_the_kernels_list_of_locks_is_read_by_device_and_inode(tmp_path: Path) -> None:
    found = tmp_path.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    table = tmp_path / "locks"
    for line, expected in {
        f"1: FLOCK  ADVISORY  WRITE 77 {device}:{found.st_ino} 0 EOF": 77,
        f"1: FLOCK  ADVISORY  WRITE 0 {device}:{found.st_ino} 0 EOF": None,
        f"1: -> FLOCK  ADVISORY  WRITE 78 {device}:{found.st_ino} 0 EOF": None,
        f"1: POSIX  ADVISORY  WRITE 79 {device}:{found.st_ino} 0 EOF": None,
        f"1: FLOCK  ADVISORY  WRITE 80 {device}:{found.st_ino + 1} 0 EOF": None,
        "nonsense": None,
    }.items():
        table.write_text(f"0: LEASE  ACTIVE    READ 1 00:1:2 0 EOF\n{line}\n")
        assert flock_holder(found, table) == expected, line
    assert flock_holder(found, tmp_path / "none") is None


@pytest.mark.parametrize("other", ["plain"], indirect=True)
@pytest.mark.parametrize("removed", ["folder", "lock"])
def test_a_removed_folder_or_lock_lets_no_second_daemon_in(
    lock: Path, other: ChildProcess, removed: str
) -> None:
    shutil.rmtree(lock.parent) if removed == "folder" else lock.unlink()

    with (
        pytest.raises(RunLockError, match=rf"another disagg-node \(pid {other.pid}\) runs in"),
        RunLock(lock, patience_seconds=0),
    ):
        pass
    assert holder(lock) == other.pid


@pytest.mark.parametrize("other", ["with a short queue"], indirect=True)
def test_a_hung_daemon_is_detected_however_many_clients_asked(
    lock: Path, other: ChildProcess
) -> None:
    """It was stopped, for example: then its queue is full and further clients are refused."""
    os.kill(other.pid, signal.SIGSTOP)
    shutil.rmtree(lock.parent)
    for _ in range(20):
        assert holder(lock) == other.pid

    with (
        pytest.raises(RunLockError, match=rf"another disagg-node \(pid {other.pid}\) runs in"),
        RunLock(lock, patience_seconds=0),
    ):
        pass


def test_a_lock_that_was_removed_or_replaced_is_restored(lock: Path) -> None:
    before = descriptors()
    with RunLock(lock, patience_seconds=0) as held:
        assert held.is_in_place
        for remove in (lock.unlink, lambda: shutil.rmtree(lock.parent)):
            remove()
            assert not held.is_in_place
            held.restore()
            assert held.is_in_place
            assert holder(lock) == os.getpid()
    assert descriptors() == before
    assert holder(lock) is None


def test_a_lock_made_by_another_meanwhile_is_not_taken(lock: Path, tmp_path: Path) -> None:
    with RunLock(lock, patience_seconds=0) as held:
        lock.rename(tmp_path / "aside")
        # As a daemon of an older version would: it requests only the lock.
        lock.touch(mode=0o600)
        with lock.open("w") as theirs:
            fcntl.flock(theirs, fcntl.LOCK_EX)
            with pytest.raises(RunLockError, match="another disagg-node"):
                held.restore()
        held.restore()
        assert held.is_in_place


def test_many_requests_for_the_holder_exhaust_nothing(lock: Path) -> None:
    with RunLock(lock, patience_seconds=0) as held:
        lock.unlink()
        for _ in range(100):
            held.answer()
            assert holder(lock) == os.getpid()


def test_files_are_written_into_the_locked_folder(lock: Path, tmp_path: Path) -> None:
    """Somebody moved the folder, and put a link to another daemon's folder in its place."""
    aside, theirs = tmp_path / "aside", tmp_path / "theirs"
    journal = lock.parent / "journal.json"
    open_before = descriptors()
    with RunLock(lock, patience_seconds=0) as ours, RunLock(theirs / "lock", patience_seconds=0):
        ours.at(journal).write_text("ours")
        assert journal.read_text() == "ours"
        lock.parent.rename(aside)
        lock.parent.symlink_to(theirs)
        ours.at(journal).write_text("ours again")

        assert (aside / "journal.json").read_text() == "ours again"
        with pytest.raises(RunLockError, match="another disagg-node"):
            ours.restore()
        assert not journal.exists()
        shutil.rmtree(aside)
        with pytest.raises(FileNotFoundError):
            ours.at(journal).write_text("nowhere")

        lock.parent.unlink()
        ours.restore()
        ours.at(journal).write_text("made anew")
        assert journal.read_text() == "made anew"
    assert descriptors() == open_before


@pytest.mark.parametrize("planted", ["link", "hard link", "folder"])
def test_a_planted_lock_is_refused_and_its_target_kept(
    lock: Path, tmp_path: Path, planted: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock.parent.mkdir(mode=0o700)
    if planted == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(victim) if planted == "link" else lock.hardlink_to(victim)

    with pytest.raises(RunLockError, match=r"^cannot use .*/run"), RunLock(lock):
        pass
    assert victim.read_text() == "precious"


def test_an_open_folder_is_closed_and_logged(lock: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock.parent.mkdir()
    lock.parent.chmod(0o755)

    with RunLock(lock):
        assert lock.parent.stat().st_mode & 0o777 == 0o700
        assert lock.stat().st_mode & 0o777 == 0o600
    assert "was open to other users (mode 0755) and is closed to them now" in caplog.text


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RunLockError, match=r"^cannot use .*/file/run: Not a directory"):
        RunLock(tmp_path / "file" / "run" / "lock").__enter__()


def test_a_new_holder_learns_the_previous_one(lock: Path) -> None:
    with RunLock(lock) as first:
        assert first.predecessor is None
    lock.write_text("4711 99\n")
    with RunLock(lock) as second:
        assert second.predecessor == "4711 99"
    assert lock.read_text().strip() == second.signature == first.signature


def test_an_unsigned_lock_file_names_the_previous_holder(lock: Path) -> None:
    """A daemon that dies before it signs has taken over nothing."""
    with RunLock(lock):
        pass
    lock.write_text("4711 99\n")
    with RunLock(lock, signs=False) as held:
        assert lock.read_text() == "4711 99\n"
        assert holder(lock) == os.getpid()
        held.sign()
        assert lock.read_text().strip() == held.signature
