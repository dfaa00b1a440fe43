"""The first process of a container restarts the daemon and leaves the engines alone."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.supervisor.first_process import Fate, fate
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from support.children import PYTHON, LinePipe, wait_readable

INIT = """
import sys
from dataclasses import replace
from disagg_cluster.supervisor import first_process
wait = float(sys.argv[1])
longest = min(30, wait or 0.1)
policy = replace(first_process.PATIENCE, backoff_first_seconds=wait, backoff_max_seconds=longest)
sys.exit(first_process.run(sys.argv[2:], lambda text: print(text, flush=True), policy=policy))
"""
SPEAKS = """
import os, signal, sys
pipe = open(sys.argv[1], "w", buffering=1)
# Waited for, not handled: a handled signal could arrive right before the wait begins.
heard = {signal.SIGHUP, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
print("daemon", os.getpid(), os.getppid(), os.getpgid(0), file=pipe)
if "engine" in sys.argv and not os.path.exists(sys.argv[1] + ".engine"):
    open(sys.argv[1] + ".engine", "w").close()
    if os.fork() == 0:
        os.setsid()
        print("engine", os.getpid(), file=pipe)
        while True: signal.pause()
while True:
    sign = signal.Signals(signal.sigwait(heard))
    print("heard", sign.name, file=pipe)
    if sign is signal.SIGTERM:
        sys.exit(7)
"""
DRAINS = """
import os, signal, sys
pipe = open(sys.argv[1], "w", buffering=1)
if not os.path.exists(sys.argv[1] + ".engine"):
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[1] + ".engine", "w").write(str(os.getpid()))
        print("engine", os.getpid(), file=pipe)
        while True: signal.pause()
    signal.pause()
if "fails" in sys.argv:
    sys.exit(1)
# As a daemon: it handles signals only after a while, and ends what its predecessor left.
import time; time.sleep(0.2)
def end(*_):
    os.kill(int(open(sys.argv[1] + ".engine").read()), signal.SIGTERM)
    print("drained", file=pipe)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
signal.pause()
"""


REFUSES = """
import os, signal, sys
ear = open(sys.argv[1], "w", buffering=1)
if not os.path.exists(sys.argv[1] + ".engine"):
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[1] + ".engine", "w").close()
        print("engine", os.getpid(), file=ear)
        while True: signal.pause()
    signal.pause()
print("refused", file=ear)
sys.exit(2)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., ChildProcess]]:
    """Start an init over a python script; all below it is killed at the end."""
    started: list[ChildProcess] = []

    def run(seconds: float, *command: str) -> ChildProcess:
        argv = [sys.executable, "-c", INIT, str(seconds), *command]
        child = start(argv, dict(os.environ), tmp_path / "log")
        started.append(child)
        return child

    yield run
    for child in started:
        child.signal_group(signal.SIGKILL)
        if child.pidfd >= 0:
            assert wait_readable(child.pidfd)
            child.reap()


def said(tmp_path: Path) -> str:
    return (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("status", "asked", "engines_left", "consecutive_crashes", "lasted", "expected"),
    [
        (0, False, True, 3, 1, (Fate(0), 0)),
        (2, False, False, 0, 1, (Fate(2), 0)),
        (2, False, True, 0, 1, (Fate(None, 1.0), 1)),
        (2, False, True, 20, 1, (Fate(None, 30.0), 21)),
        (2, True, True, 0, 1, (Fate(2), 0)),
        (1, True, True, 0, 1, (Fate(1), 0)),
        (-15, True, False, 0, 1, (Fate(143), 0)),
        (1, False, False, 0, 1, (Fate(None, 1.0), 1)),
        (-9, False, True, 1, 1, (Fate(None, 2.0), 2)),
        (-9, False, True, 20, 1, (Fate(None, 30.0), 21)),
        (-9, False, True, 20, 60, (Fate(None, 1.0), 1)),
    ],
)
def test_a_requested_or_final_exit_code_is_passed_on_and_any_other_is_a_crash(
    status: int,
    asked: bool,
    engines_left: bool,
    consecutive_crashes: int,
    lasted: float,
    expected: tuple[Fate, int],
) -> None:
    what = fate(
        status,
        asked=asked,
        engines_left=engines_left,
        lasted_seconds=lasted,
        consecutive_crashes=consecutive_crashes,
    )
    assert what == expected


@pytest.mark.parametrize("code", [0, 2])
def test_init_exits_with_the_exit_code_of_the_daemon(
    run: Callable[..., ChildProcess], code: int
) -> None:
    child = run(1000, *PYTHON, f"raise SystemExit({code})")
    assert wait_readable(child.pidfd)

    assert child.exit_code() == code


def test_a_crashed_daemon_is_started_again_and_its_engines_are_not_touched(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path
) -> None:
    child = run(0.0, *PYTHON, SPEAKS, str(pipe.path), "engine")
    word, first, parent, group = pipe.line().split()
    assert (word, int(parent), group) == ("daemon", child.pid, first)
    engine = int(pipe.line().split()[1])

    os.kill(int(first), signal.SIGKILL)
    word, second, *_ = pipe.line().split()
    assert (word, second != first) == ("daemon", True)
    assert "ended by signal 9; the next start is in 0.0 s" in said(tmp_path)
    assert procfs.is_alive(engine)

    pidfd = os.pidfd_open(engine)
    os.kill(engine, signal.SIGKILL)
    assert wait_readable(pidfd)
    os.close(pidfd)
    os.kill(child.pid, signal.SIGTERM)
    assert pipe.line() == "heard SIGTERM"
    assert wait_readable(child.pidfd)
    assert child.exit_code() == 7
    assert procfs.start_ticks(engine) is None, "an orphan was not buried"


def test_a_refused_start_is_repeated_while_engines_are_left_and_final_without_them(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path
) -> None:
    """Ending with the daemon's exit code would end the container, and with it the engines."""
    child = run(0.0, *PYTHON, REFUSES, str(pipe.path))
    engine = int(pipe.line().split()[1])
    [daemon] = [pid for pid in procfs.children_of(child.pid) if pid != engine]
    os.kill(daemon, signal.SIGKILL)

    assert [pipe.line() for _ in range(3)] == ["refused"] * 3
    assert procfs.is_alive(engine)
    assert "with exit code 2 although engines are left; the next start is in" in said(tmp_path)

    os.kill(engine, signal.SIGKILL)
    assert wait_readable(child.pidfd)
    assert child.exit_code() == 2


def test_signals_are_passed_on(run: Callable[..., ChildProcess], pipe: LinePipe) -> None:
    child = run(1000, *PYTHON, SPEAKS, str(pipe.path))
    pipe.line()

    os.kill(child.pid, signal.SIGHUP)
    assert pipe.line() == "heard SIGHUP"
    os.kill(child.pid, signal.SIGTERM)
    assert pipe.line() == "heard SIGTERM"
    assert wait_readable(child.pidfd)
    assert child.exit_code() == 7


def test_a_failing_daemon_is_restarted_and_a_signal_ends_the_backoff(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path
) -> None:
    script = "import sys; print('up', file=open(sys.argv[1], 'w')); raise SystemExit(1)"
    child = run(0.0, *PYTHON, script, str(pipe.path))
    assert [pipe.line() for _ in range(2)] == ["up", "up"]
    os.kill(child.pid, signal.SIGTERM)
    assert wait_readable(child.pidfd)

    waits = run(1000, *PYTHON, script, str(pipe.path))
    while "the next start is in 30.0 s" not in said(tmp_path):
        assert not wait_readable(waits.pidfd, 0.02)
    os.kill(waits.pid, signal.SIGTERM)
    assert wait_readable(waits.pidfd)
    assert waits.exit_code() == 128 + signal.SIGTERM
    assert "asked to end by SIGTERM while no daemon ran" in said(tmp_path)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_while_the_daemon_is_down_starts_one_that_drains_the_engines(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path, sign: signal.Signals
) -> None:
    """A daemon does not handle SIGQUIT."""
    child = run(1000, *PYTHON, DRAINS, str(pipe.path))
    engine = int(pipe.line().split()[1])
    [daemon] = [pid for pid in procfs.children_of(child.pid) if pid != engine]
    os.kill(daemon, signal.SIGKILL)
    while "the next start is in" not in said(tmp_path):
        assert not wait_readable(child.pidfd, 0.02)

    os.kill(child.pid, sign)
    assert pipe.line() == "drained"
    assert wait_readable(child.pidfd)
    assert child.exit_code() == 0
    assert not procfs.is_alive(engine)


def test_engines_that_no_daemon_drains_are_stopped_by_init(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path
) -> None:
    child = run(1000, *PYTHON, DRAINS, str(pipe.path), "fails")
    engine = int(pipe.line().split()[1])
    [daemon] = [pid for pid in procfs.children_of(child.pid) if pid != engine]
    os.kill(daemon, signal.SIGKILL)
    while "the next start is in" not in said(tmp_path):
        assert not wait_readable(child.pidfd, 0.02)

    os.kill(child.pid, signal.SIGTERM)
    assert wait_readable(child.pidfd)
    assert child.exit_code() == 1
    assert not procfs.is_alive(engine)
    assert "they are asked to end" in said(tmp_path)


def test_a_sigterm_that_the_daemon_cannot_handle_yet_is_sent_again(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path
) -> None:
    """Else it would die of the signal, and the engines of an earlier one would not be drained."""
    child = run(0.0, *PYTHON, DRAINS, str(pipe.path))
    engine = int(pipe.line().split()[1])
    os.kill(child.pid, signal.SIGTERM)

    assert pipe.line() == "drained"
    assert wait_readable(child.pidfd)
    assert child.exit_code() == 0
    assert not procfs.is_alive(engine)


def test_a_missing_program_is_named_in_the_log(
    run: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    child = run(0.0, "/nowhere/disagg-node")
    assert wait_readable(child.pidfd)

    assert child.exit_code() == 1
    assert "cannot start /nowhere/disagg-node: No such file or directory" in said(tmp_path)


def test_a_program_missing_during_its_replacement_is_tried_again(
    run: Callable[..., ChildProcess], pipe: LinePipe, tmp_path: Path
) -> None:
    program = tmp_path / "daemon"
    program.write_text(f"#!/bin/sh\necho up $$ > {pipe.path}\nread nothing < {tmp_path}/silence\n")
    program.chmod(0o755)
    os.mkfifo(tmp_path / "silence")
    child = run(0.0, str(program))
    pid = int(pipe.line().split()[1])
    aside = program.rename(tmp_path / "aside")
    os.kill(pid, signal.SIGKILL)
    while "cannot start" not in said(tmp_path):
        assert not wait_readable(child.pidfd, 0.02)

    aside.rename(program)
    assert pipe.line().startswith("up"), said(tmp_path)
