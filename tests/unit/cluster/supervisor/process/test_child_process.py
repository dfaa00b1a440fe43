"""One real child: started, signalled with its session, observed to exit, and reaped."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.worker_logs import last_lines
from disagg_cluster.supervisor.process.child_process import ChildProcess, StartError, start
from support.children import (
    PYTHON,
    STUBBORN,
    LinePipe,
    children,
    descriptors,
    is_gone,
    wait_readable,
)

FORKS = """
import os, signal, sys
pipe = open(sys.argv[1], "w", buffering=1)
if os.fork() == 0:
    if sys.argv[2] == "own group":
        os.setpgid(0, 0)
    print(os.getpid(), file=pipe)
    signal.pause()
    os._exit(0)
if sys.argv[3] == "stay":
    signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "worker.log"


@pytest.fixture
def run(log: Path) -> Iterator[Callable[..., ChildProcess]]:
    """Start python on a script; whatever of it is left at the end is killed."""
    started: list[ChildProcess] = []

    def run(script: str, *arguments: str) -> ChildProcess:
        child = start([*PYTHON, script, *arguments], dict(os.environ), log)
        started.append(child)
        return child

    yield run
    for child in started:
        child.signal_group(signal.SIGKILL)
        if child.pidfd >= 0:
            assert wait_readable(child.pidfd)
        child.reap()


def test_a_child_leads_its_own_session_has_empty_stdin_and_logs_stdout_and_stderr(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    child = run(
        "import os, sys; print(os.getsid(0), repr(sys.stdin.read()), flush=True);"
        "print('to stderr', file=sys.stderr)"
    )
    assert wait_readable(child.pidfd)

    assert log.read_text() == f"{child.pid} ''\nto stderr\n"
    assert child.start_ticks == procfs.start_ticks(child.pid)


def test_a_child_inherits_no_descriptor_of_ours(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    ours, other_end = os.pipe()
    os.set_inheritable(ours, True)
    try:
        child = run("import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')))")
        assert wait_readable(child.pidfd)
    finally:
        os.close(ours)
        os.close(other_end)

    assert log.read_text() == "[0, 1, 2, 3]\n"  # 3 is the folder that it lists


def test_a_log_is_appended_to_and_its_start_offset_is_known(
    run: Callable[..., ChildProcess], log: Path
) -> None:
    log.parent.mkdir()
    log.write_text("from before\n")
    child = run("print('new')")
    assert wait_readable(child.pidfd)

    assert log.read_text() == "from before\nnew\n"
    assert last_lines(log, 10, child.log_start_bytes) == ("new",)


def test_a_log_truncated_by_copytruncate_is_continued_from_offset_zero(
    run: Callable[..., ChildProcess], log: Path, pipe: LinePipe
) -> None:
    child = run(
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]);"
        "print('one', flush=True); print('up', file=open(sys.argv[1], 'w'), flush=True);"
        "signal.sigwait([signal.SIGUSR1]); print('two')",
        str(pipe.path),
    )
    pipe.line()
    os.truncate(log, 0)
    child.signal_group(signal.SIGUSR1)
    assert wait_readable(child.pidfd)

    assert log.read_bytes() == b"two\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_the_exit_code_is_known_before_the_child_is_reaped(
    run: Callable[..., ChildProcess], script: str, code: int
) -> None:
    child = run(script)
    assert wait_readable(child.pidfd)

    assert child.exit_code() == code
    child.reap()
    assert child.pid not in children()


def test_a_running_child_has_no_exit_code_and_is_not_reaped(
    run: Callable[..., ChildProcess],
) -> None:
    child = run("import signal; signal.pause()")

    child.reap()
    assert child.exit_code() is None
    assert procfs.is_alive(child.pid)


def test_the_exit_of_a_child_wakes_the_event_loop_by_its_pidfd(
    run: Callable[..., ChildProcess],
) -> None:
    async def until_dead(child: ChildProcess) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(child.pidfd, ended.set)
        child.signal_group(signal.SIGTERM)
        async with asyncio.timeout(20):
            await ended.wait()
        loop.remove_reader(child.pidfd)

    child = run("import signal; signal.pause()")
    asyncio.run(until_dead(child))

    assert child.exit_code() == -signal.SIGTERM


@pytest.mark.parametrize("group", ["same group", "own group"])
def test_a_signal_reaches_all_of_the_session(
    run: Callable[..., ChildProcess], pipe: LinePipe, group: str
) -> None:
    child = run(FORKS, str(pipe.path), group, "stay")
    grandchild = int(pipe.line())
    assert child.survivors() == (grandchild,)

    assert child.signal_group(signal.SIGTERM)
    assert wait_readable(child.pidfd)
    assert is_gone(grandchild)


@pytest.mark.parametrize("group", ["same group", "own group"])
def test_a_session_that_is_not_ours_to_reap_is_signalled_process_by_process(
    run: Callable[..., ChildProcess], pipe: LinePipe, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of such a group may be reused: it is never signalled as a whole."""
    child = run(FORKS, str(pipe.path), group, "stay")
    grandchild = int(pipe.line())
    monkeypatch.setattr(ChildProcess, "_is_our_child", lambda _child: False)
    monkeypatch.setattr(os, "killpg", None)

    assert child.signal_group(signal.SIGTERM)
    assert wait_readable(child.pidfd)
    assert is_gone(grandchild)


def test_a_foreign_process_group_with_a_reused_number_is_not_signalled(
    run: Callable[..., ChildProcess],
) -> None:
    """It got the number after the last check, which still saw the adopted process's start time."""
    adopted = run("pass")
    assert wait_readable(adopted.pidfd)
    os.waitpid(adopted.pid, 0)  # as its real parent would
    stranger = run("import signal; signal.pause()")
    late = ChildProcess(stranger.pid, stranger.start_ticks, adopted.pidfd, 0)

    late.signal_group(signal.SIGKILL)

    assert not wait_readable(stranger.pidfd, 0.2)


@pytest.mark.parametrize("group", ["same group", "own group"])
def test_survivors_of_a_dead_leader_are_found_and_killed(
    run: Callable[..., ChildProcess], pipe: LinePipe, group: str
) -> None:
    child = run(FORKS, str(pipe.path), group, "leave")
    grandchild = int(pipe.line())
    assert wait_readable(child.pidfd)
    assert child.survivors() == (grandchild,)

    assert child.signal_group(signal.SIGKILL)
    assert is_gone(grandchild)
    assert child.survivors() == ()


def test_a_process_outside_the_session_is_not_watched(
    run: Callable[..., ChildProcess],
) -> None:
    child = run("import signal; signal.pause()")

    assert child.watch(os.getpid()) is None
    pidfd = child.watch(child.pid)
    assert pidfd is not None
    os.close(pidfd)


def test_a_pid_with_another_start_time_is_not_signalled(run: Callable[..., ChildProcess]) -> None:
    child = run("import signal; signal.pause()")
    ours, child.start_ticks = child.start_ticks, 1

    assert child.signal_group(signal.SIGKILL) is False
    assert child.survivors() == ()
    assert procfs.is_alive(child.pid)

    child.start_ticks = ours


def test_a_reaped_child_is_never_signalled_again(run: Callable[..., ChildProcess]) -> None:
    child = run("pass")
    assert wait_readable(child.pidfd)
    child.reap()
    child.reap()

    assert child.signal_group(signal.SIGKILL) is False


def test_a_child_that_ignores_sigterm_ends_by_sigkill(
    run: Callable[..., ChildProcess], pipe: LinePipe
) -> None:
    child = run(
        STUBBORN + "import sys; print('up', file=open(sys.argv[1], 'w'), flush=True)\n"
        "while True: signal.pause()",
        str(pipe.path),
    )
    pipe.line()
    child.signal_group(signal.SIGTERM)
    child.signal_group(signal.SIGKILL)
    assert wait_readable(child.pidfd)

    assert child.exit_code() == -signal.SIGKILL


def test_a_program_that_does_not_exist_is_named(log: Path) -> None:
    with pytest.raises(StartError, match=r"^cannot start /nowhere/python: no such program"):
        start(["/nowhere/python", "-c", ""], {}, log)


def test_a_program_that_may_not_be_run_is_named_with_the_reason(log: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(StartError, match=r"notes.txt: Permission denied"):
        start([str(tmp_path / "notes.txt")], {}, log)


def test_a_working_directory_that_does_not_exist_is_named(log: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"its working directory .*/away does not exist"):
        start([sys.executable, "-c", ""], {}, log, tmp_path / "away")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StartError, match=r"cannot write the log .*/file/worker.log"):
        start([sys.executable, "-c", ""], {}, tmp_path / "file" / "worker.log")


def test_successful_and_failed_starts_leak_no_descriptor_and_no_child(log: Path) -> None:
    before = descriptors(), children()
    for _ in range(5):
        child = start([*PYTHON, "pass"], {}, log)
        assert wait_readable(child.pidfd)
        child.reap()
        with pytest.raises(StartError):
            start(["/nowhere/python"], {}, log)

    assert (descriptors(), children()) == before


def test_last_lines_are_limited_in_number_and_by_start_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\nb\nc\n")

    assert last_lines(log, 2) == ("b", "c")
    assert last_lines(log, 0) == ()
    assert last_lines(log, 5, since_bytes=4) == ("c",)
    assert last_lines(log, 5, since_bytes=6) == ()
    assert last_lines(log, 5, since_bytes=1000) == ("a", "b", "c")
    assert last_lines(tmp_path / "none", 5) == ()


def test_the_last_line_of_a_large_log_with_invalid_utf_8_is_readable(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\n\xff\xfe end\n")

    assert last_lines(log, 1) == ("�� end",)


def test_a_process_with_brackets_in_its_name_is_read_right(
    run: Callable[..., ChildProcess], pipe: LinePipe
) -> None:
    child = run(
        "import signal, sys; open('/proc/self/comm', 'w').write('x) Z 1 (2');"
        "print('up', file=open(sys.argv[1], 'w'), flush=True); signal.pause()",
        str(pipe.path),
    )
    pipe.line()

    assert procfs.is_alive(child.pid)
    assert procfs.start_ticks(child.pid) == child.start_ticks


def test_a_nonexistent_process_has_no_start_time_and_is_not_alive() -> None:
    assert procfs.start_ticks(2**22 + 1) is None
    assert not procfs.is_alive(2**22 + 1)
