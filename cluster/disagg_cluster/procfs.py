"""What the kernel tells of processes: when one started, and who belongs to its session."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None if there is no such process.

    A pid is only trusted together with this number: pids are used again, the pair is not.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def is_alive(pid: int) -> bool:
    """Whether `pid` still runs; a zombie does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def session_pids(session: int) -> tuple[int, ...]:
    """The processes of a session, its leader and zombies included, in no order."""
    pids = []
    for name in os.listdir(_PROC):  # noqa: PTH208 - thousands of entries, no Path for each
        if not name.isdigit():
            continue
        try:
            if os.getsid(int(name)) == session:
                pids.append(int(name))
        except (ProcessLookupError, PermissionError):
            continue
    return tuple(pids)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third (state) on; empty if it has gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field is the command in brackets and may hold spaces and brackets itself.
    return text.rpartition(")")[2].split()
