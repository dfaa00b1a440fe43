"""Ends all processes that a test run has started, however the run ends.

A pytest plugin. Processes inherit the run's mark and the test's name in their environment; those
with the mark after all fixtures are torn down are killed, named, and fail the run.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.children import wait_readable

MARK = "DISAGG_TEST_RUN"
_TEST = "PYTEST_CURRENT_TEST"
_RUN = pytest.StashKey[str]()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that was left, with the test that started it and its command."""

    pid: int
    test: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pid}, of {self.test or 'no test'}: {' '.join(self.argv)}"


def marks() -> dict[str, str]:
    """Return the variables for a process that does not get our environment."""
    return {name: os.environ[name] for name in (MARK, _TEST) if name in os.environ}


def end_leftovers(run: str, proc: Path = Path("/proc")) -> tuple[Leftover, ...]:
    """Kill all processes with the mark of a run, except ourselves, until none is left."""
    ended: dict[int, Leftover] = {}
    while found := tuple(_leftovers(run, proc)):
        for each in found:
            ended[each.pid] = each
            _kill(each.pid)
    return tuple(ended.values())


def _leftovers(run: str, proc: Path) -> Iterator[Leftover]:
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # Gone meanwhile, or another user's, so not ours. A zombie has no environment.
        with suppress(OSError):
            environment = _environment(entry)
            if f"{MARK}={run}" in environment:
                test = next((e for e in environment if e.startswith(f"{_TEST}=")), "")
                argv = _fields(entry / "cmdline")
                yield Leftover(int(entry.name), test.partition("=")[2], argv)


def _environment(process: Path) -> tuple[str, ...]:
    """Return the environment of a process; wait if it is just executing another program.

    `Popen` returns as soon as its files are closed; its environment is set a little later, and
    reads as empty until then. A program started without one has one of length 0 at an address; a
    kernel thread or a zombie has no program.
    """
    while not (environment := _fields(process / "environ"))[0]:
        (process / "exe").readlink()
        address = (process / "stat").read_text().rpartition(")")[2].split()[48]
        if address != "0":
            return _fields(process / "environ")
    return environment


def _fields(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode(errors="replace").rstrip("\0").split("\0"))


def _kill(pid: int) -> None:
    """Kill a process and wait for its end; it may have ended meanwhile."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            wait_readable(pidfd)
        finally:
            os.close(pidfd)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Mark processes started from now on; make SIGTERM tear down all fixtures, too."""
    run = session.config.stash[_RUN] = uuid.uuid4().hex
    os.environ[MARK] = run
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what is left after the last fixture."""
    left = end_leftovers(session.config.stash[_RUN])
    if left:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(reporter, pytest.TerminalReporter):
            reporter.write_line("")
            for each in left:
                reporter.write_line(f"left behind and killed: process {each}", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
