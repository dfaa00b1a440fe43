"""Finds what is left of the processes that a daemon before us started.

Nothing is believed by its pid alone: a process is ours if it is the session leader that the
journal names, started at the very tick it says, or if it writes the worker's own log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disagg_cluster import procfs
from disagg_cluster.journal_text import Entry
from disagg_cluster.life import Life, Presence, WorkerState
from disagg_cluster.worker import Child


@dataclass(frozen=True, slots=True)
class Found:
    """What is left of a worker; `child` is None if nothing is, and the caller's otherwise.

    Not `recorded` is a process that no journal names: the disk was full, say, when it started.
    """

    presence: Presence
    child: Child | None = None
    recorded: bool = True


_NOTHING = Found(Presence.GONE)


def find(entry: Entry) -> Found:
    """Look for the process of a journal's entry, for what it left, or for its successor."""
    log_path, since_ticks = Path(entry.log_path), entry.start_ticks
    if entry.life.presence is Presence.RUNNING and entry.pid is None:
        # Between fork and exec it has no argv of its own yet.
        meant = find_unrecorded(log_path, since_ticks)
        return replace(meant, recorded=True)
    recorded = _recorded(entry, entry.pid) if entry.pid is not None else _NOTHING
    if recorded.presence is not Presence.GONE:
        return recorded
    return find_unrecorded(log_path, since_ticks, entry.argv)


def find_unrecorded(log_path: Path, since_ticks: int, argv: Sequence[str] = ()) -> Found:
    """Look for a worker whose start was never written down.

    Args:
        log_path: Its log: the leader of its session writes there.
        since_ticks: It started then or later.
        argv: What it was started with; not asked for if empty.
    """
    for pid in procfs.leaders_writing(log_path):
        pidfd, ticks = _pidfd(pid), procfs.start_ticks(pid)
        if pidfd is None:
            continue
        # An interpreter of a script stands before what was asked for.
        told = procfs.command_line(pid)[-len(argv) :] if argv else ()
        if ticks is not None and ticks >= since_ticks and told == tuple(argv):
            return Found(Presence.RUNNING, Child(pid, ticks, pidfd, 0), recorded=False)
        os.close(pidfd)
    return _NOTHING


def is_there(entry: Entry) -> bool:
    """Whether anything is left of a worker's process."""
    found = find(entry)
    if found.child is not None:
        found.child.let_go()
    return found.presence is not Presence.GONE


def unrecorded_life(life: Life, now_ns: int) -> Life:
    """The life of a process that was found although no journal names it."""
    return replace(
        life,
        state=WorkerState.STARTING,
        presence=Presence.RUNNING,
        incarnation=life.incarnation + 1,
        since_ns=now_ns,
        sent=None,
    )


def _recorded(entry: Entry, pid: int) -> Found:
    """Look for the very process that an entry names."""
    pidfd, ticks = _pidfd(pid), procfs.start_ticks(pid)
    if pidfd is not None and ticks is not None and ticks != entry.start_ticks:
        os.close(pidfd)
        return _NOTHING
    if pidfd is None:
        # One of its session that writes its log proves that the session is still its own.
        pidfd = _member(entry, pid)
    if pidfd is None:
        return _NOTHING
    child = Child(pid, entry.start_ticks, pidfd, entry.log_start_bytes)
    if procfs.is_alive(pid):
        return Found(Presence.RUNNING, child)
    if child.survivors():
        return Found(Presence.LEFTOVER, child)
    child.let_go()
    return _NOTHING


def _member(entry: Entry, session: int) -> int | None:
    """A pidfd of a process left in a session whose leader has gone."""
    try:
        log = Path(entry.log_path).stat()
    except OSError:
        return None
    for pid in procfs.session_pids(session):
        ticks = procfs.start_ticks(pid)
        if ticks is None or ticks < entry.start_ticks or not procfs.writes(pid, log):
            continue
        pidfd = _pidfd(pid)
        if pidfd is not None and procfs.session_of(pid) == session:
            return pidfd
        if pidfd is not None:
            os.close(pidfd)
    return None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
