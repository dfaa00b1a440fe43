"""Traits that identify a worker's processes: log, inherited variable, session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.host.processes import procfs

WORKER_MARK = "DISAGG_NODE_WORKER"
"""The variable that every process of a worker inherits: the path of the worker's log."""

_DELETED = " (deleted)"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Identity of a log: the file at its path now, or its name if that was moved.

    `path` has no links in it. `found` is None if there is no file.
    """

    path: str
    found: os.stat_result | None


def log_place(log_path: Path) -> LogPlace:
    """Return the identity of a log, whether it exists or not."""
    try:
        found = log_path.stat()
    except OSError:
        found = None
    return LogPlace(f"{os.path.realpath(log_path.parent)}/{log_path.name}", found)


def writes_log(pid: int, place: LogPlace) -> bool:
    """Return whether a process has a log as its standard output, even if deleted or moved.

    False if we may not look. A moved log keeps its name as a prefix, as rotations do. The same name
    in another container is another log.
    """
    link = f"/proc/{pid}/fd/1"
    try:
        if place.found is not None and os.path.samestat(Path(link).stat(), place.found):
            return True
        output = os.readlink(link)  # noqa: PTH115 - it may be no path
    except OSError:
        return False
    output = output.removesuffix(_DELETED)
    if output != place.path and not output.startswith(f"{place.path}."):
        return False
    return _sees_same_path(pid, place.path)


def stdout_path(pid: int) -> str:
    """Return the path of a process's standard output; empty if it is none we can reach."""
    try:
        output = os.readlink(f"/proc/{pid}/fd/1").removesuffix(_DELETED)  # noqa: PTH115 - as above
    except OSError:
        return ""
    return output if output.startswith("/") and _sees_same_path(pid, output) else ""


def mark_of(pid: int) -> str:
    """Return the log of the worker in whose environment a process was started; empty if none.

    A process that sets its title overwrites its environment, and one that is just being executed
    has none yet: a missing mark proves nothing. The mark of another container's worker does not
    count, though it reads the same.
    """
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            variables = file.read(_MOST_BYTES).split(b"\0")
    except OSError:
        return ""
    found = dict(variable.partition(b"=")[::2] for variable in variables)
    # Nothing weaker will do: everything a command line needs is printed for people to use by hand.
    mark = os.fsdecode(found.get(WORKER_MARK.encode(), b""))
    return mark if mark and _sees_same_path(pid, mark) else ""


def leads_to_the_same(pid: int, path: Path) -> bool:
    """Return whether a path, or its nearest parent, is the same for a process; True if unknown.

    Another container may well have the same path.
    """
    real = Path(os.path.realpath(path))
    place = next((each for each in (real, *real.parents) if each.is_dir()), Path("/"))
    try:
        theirs = Path(f"/proc/{pid}/root{place}").stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return os.path.samestat(theirs, place.stat())


def _sees_same_path(pid: int, log: str) -> bool:
    """Return whether a log's path means the same to a process.

    The folder above the run folder is compared, as the run folder may have been recreated.
    """
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):  # noqa: PTH115
            return True
    except OSError:
        return True
    above = Path(log).parents
    return leads_to_the_same(pid, above[min(2, len(above) - 1)] if above else Path("/"))


def own_leaders() -> Iterator[int]:
    """Yield the living session leaders of our own user except ourselves, oldest first."""
    found = []
    for pid in procfs.pids():
        if procfs.session_of(pid) == pid != os.getpid() and _is_own(pid) and procfs.is_alive(pid):
            found.append((procfs.start_ticks(pid) or 0, pid))
    yield from (pid for _, pid in sorted(found))


def leaders_writing(log_path: Path) -> tuple[int, ...]:
    """Return our user's living session leaders whose standard output is this log, oldest first."""
    place = log_place(log_path)
    return tuple(pid for pid in own_leaders() if writes_log(pid, place))


def own_processes() -> Iterator[int]:
    """Yield all processes of our own user but ourselves, zombies included, in no order."""
    for pid in procfs.pids():
        if pid != os.getpid() and _is_own(pid):
            yield pid


def _is_own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116 - thousands of them
    except OSError:
        return False
