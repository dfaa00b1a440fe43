"""Process data from the kernel: start times, sessions, command lines."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

_PROC = Path("/proc")
_DEAD = ("Z", "X")
# The last two: it is the id of a thread (ENOENT since Linux 6.15), or none at all.
_NO_PROCESS = (errno.ESRCH, errno.ENOENT, errno.EINVAL)


def start_ticks(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot; None if there is no such process.

    A pid is only trusted together with this number: pids are reused, the pair is not.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def state(pid: int) -> str:
    """Return the kernel's state letter of `pid`; empty if there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def is_alive(pid: int) -> bool:
    """Return whether `pid` still runs; a zombie does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in _DEAD


def living_since_ticks(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot, if it still runs; None if not."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in _DEAD else None


def session_pids(session: int) -> tuple[int, ...]:
    """Return the processes of a session, its leader and zombies included, in no order."""
    return tuple(pid for pid in pids() if session_of(pid) == session)


def now_ticks() -> int:
    """Return the current time in the clock of `start_ticks`: later starts are never smaller."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def age_seconds(start_ticks: int) -> float:
    """Return how long ago a process started, given its start in clock ticks since boot."""
    return (now_ticks() - start_ticks) / os.sysconf("SC_CLK_TCK")


def start_timestamp_seconds(pid: int) -> float | None:
    """Return the Unix time at which `pid` started; None if there is no such process.

    Each call returns a slightly different value, as the clock is adjusted.
    """
    ticks = start_ticks(pid)
    return None if ticks is None else time.time() - age_seconds(ticks)


def cpu_seconds_of_tree(pid: int) -> float | None:
    """Return the CPU time of a process and its descendants so far; None if it is gone.

    The CPU time of a child that has ended counts for the process that waited for it.
    """
    fields = _stat(pid)
    if not fields:
        return None
    ticks = sum(int(fields[number]) for number in range(11, 15))
    below = (cpu_seconds_of_tree(child) for child in children_of(pid))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(seconds or 0.0 for seconds in below)


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, which the caller closes; None if there is no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return None
        raise


def session_of(pid: int) -> int | None:
    """Return the id of a process's session; None if it is gone."""
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def command_line(pid: int) -> tuple[str, ...]:
    """Return a process's own command line; nothing if it is gone or hides it."""
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(argument) for argument in text.split(b"\0")[:-1])


def boot_id() -> str:
    """Return the kernel's id of the current boot; empty if it has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the kernel's name for our pid namespace; empty if it has none."""
    try:
        return os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115 - it is not a path
    except OSError:
        return ""


def pids() -> list[int]:
    """Return all visible processes, in no order."""
    # Thousands of entries: no Path for each.
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third (state) on; empty if it is gone."""
    try:
        # Called for every engine each second; a Path would add two thirds to what it costs.
        with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field is the command in brackets and may itself contain spaces and brackets.
    return text.rpartition(b")")[2].decode("ascii").split()


def children_of(pid: int) -> list[int]:
    """Return the current children of all threads of a process."""
    found = []
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    except OSError:
        return found
    return found
