"""No process that a run of the tests has started outlives the run, however that ends.

A pytest plugin. What a test starts inherits the run's mark and the test's name with its
environment; whatever bears the mark when all fixtures are torn down is killed, named, and fails
the run.
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
    """A process that was still there: started by which test, and as what."""

    pid: int
    test: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pid}, of {self.test or 'no test'}: {' '.join(self.argv)}"


def marks() -> dict[str, str]:
    """What the environment of a process needs that is not given ours."""
    return {name: os.environ[name] for name in (MARK, _TEST) if name in os.environ}


def end_leftovers(run: str, proc: Path = Path("/proc")) -> tuple[Leftover, ...]:
    """Kill whatever bears the mark of a run, ourselves excepted, until there is no more of it."""
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
        # Gone meanwhile, or another user's: then it is none of ours. A zombie has no environment.
        with suppress(OSError):
            environment = _environment(entry)
            if f"{MARK}={run}" in environment:
                test = next((e for e in environment if e.startswith(f"{_TEST}=")), "")
                argv = _fields(entry / "cmdline")
                yield Leftover(int(entry.name), test.partition("=")[2], argv)


def _environment(process: Path) -> tuple[str, ...]:
    """Return the environment of a process, waiting for one that is between two programs.

    `Popen` returns as soon as its files are closed; its environment is set a little later, and
    reads as empty until then. A program that was given none has one of length 0 at an address;
    neither a kernel thread nor a zombie has a program.
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
    """Kill a process and wait for its end; one that has ended meanwhile is well."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            wait_readable(pidfd)
        finally:
            os.close(pidfd)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Mark what is started from now on; SIGTERM, too, lets all fixtures be torn down."""
    run = session.config.stash[_RUN] = uuid.uuid4().hex
    os.environ[MARK] = run
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what is left, after the last fixture's end."""
    left = end_leftovers(session.config.stash[_RUN])
    if left:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(reporter, pytest.TerminalReporter):
            reporter.write_line("")
            for each in left:
                reporter.write_line(f"left behind and killed: process {each}", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
