"""The processes of a campaign: orphans of a fault become children of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from disagg_cluster.host.processes import procfs
from support.children import children

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants from now on; `bury` reaps them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Exit, cleaning up, at SIGTERM or when our parent ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def bury(known: Collection[int]) -> None:
    """Reap dead children, except the known ones that other code waits for."""
    for pid in children() - frozenset(known):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def descendants() -> Iterator[int]:
    """Yield all living descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
    below = list(parents.get(os.getpid(), ()))
    while below:
        pid = below.pop()
        yield pid
        below += parents.get(pid, ())


def engines_at(port: int) -> list[int]:
    """Return the living engines that were started for a port, by pid."""
    found = []
    for pid in descendants():
        argv = procfs.command_line(pid)
        if "--port" in argv and argv[argv.index("--port") + 1] == str(port):
            found.append(pid)
    return found


def helpers_of(port: int) -> list[int]:
    """Return the living helpers of an engine."""
    from bench.faults.engine import HELPER_SECONDS

    return [
        pid for pid in descendants() if f"{HELPER_SECONDS}{port}" in procfs.command_line(pid)[1:]
    ]


def end_all(pids: Collection[int]) -> None:
    """Kill these processes, even stopped ones."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGKILL)
