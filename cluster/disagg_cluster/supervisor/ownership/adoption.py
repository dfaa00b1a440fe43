"""Finds what is left of the processes that an earlier daemon started.

A pid alone proves nothing: a process is ours if it is the session leader that the journal names,
started at the very tick that it states, or if what can be observed of it proves it
(`ProcessEvidence`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from disagg_cluster.config.values import reachable
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import (
    LogPlace,
    leaders_writing,
    log_place,
    mark_of,
    own_leaders,
    own_processes,
    writes_log,
)
from disagg_cluster.host.tcp_listeners import Owner, listening_inodes, owner_of, session_members
from disagg_cluster.lifecycle.state import Lifecycle, Presence, WorkerState
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.process.child_process import ChildProcess


@dataclass(frozen=True, slots=True)
class WorkerFingerprint:
    """How to recognise a worker: its log, arguments and address, and its earliest possible start.

    Empty arguments prove nothing; port 0 proves nothing either.
    """

    log_path: Path
    argv: tuple[str, ...]
    host: str
    port: int
    since_ticks: int = 0


@dataclass(frozen=True, slots=True)
class ProcessEvidence:
    """What can be observed of a session leader of our own user that a worker should have.

    `writes_log`: its standard output is the worker's log, perhaps deleted or moved. `argv_fits`: it
    was started with the worker's arguments. `bears_mark`: it inherited the worker's environment.
    `holds_port`: its session listens on the worker's port.
    """

    writes_log: bool
    argv_fits: bool
    bears_mark: bool
    holds_port: bool


def proves_worker(traits: ProcessEvidence) -> bool:
    """Whether these traits together are those of a worker and of nothing else.

    The log alone is not: a person may append to it. Without it (the disk was full, the folder was
    renamed) both arguments and mark are required: somebody may have started the same by hand, and
    one of ours may load for long before it listens. A title that an engine gives itself overwrites
    both.
    """
    if traits.writes_log:
        return traits.argv_fits or traits.bears_mark or traits.holds_port
    return traits.argv_fits and traits.bears_mark


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """What is left of a worker; `child` is None if nothing is, and otherwise the caller's to close.

    Not `recorded`: no journal names the process, perhaps because the disk was full at its start.
    """

    presence: Presence
    child: ChildProcess | None = None
    recorded: bool = True


_NOTHING = FoundProcess(Presence.GONE)


def find(entry: Entry) -> FoundProcess:
    """Look for the process of a journal's entry, for what it left, or for its successor."""
    log_path = Path(entry.log_path)
    if entry.life.presence is Presence.RUNNING and entry.pid is None:
        # Between fork and exec it has no argv of its own yet.
        return replace(_find_meant(log_path, entry.start_ticks), recorded=True)
    recorded = _recorded(entry, entry.pid) if entry.pid is not None else _NOTHING
    if recorded.presence is not Presence.GONE:
        return recorded
    tag = entry.tag
    sought = WorkerFingerprint(
        log_path, entry.argv, reachable(tag.host), tag.port, entry.start_ticks
    )
    return find_unrecorded(sought)


def find_unrecorded(sought: WorkerFingerprint) -> FoundProcess:
    """Look for a worker whose start was never recorded, or whose journal is lost."""
    place, inodes = log_place(sought.log_path), inodes_at(sought.host, sought.port)
    for pid in own_leaders():
        traits = _traits(pid, sought, place, inodes)
        if proves_worker(traits):
            found = _running(pid, sought.since_ticks, str(sought.log_path))
            if found is not None:
                return found
    return _NOTHING


def _find_meant(log_path: Path, since_ticks: int) -> FoundProcess:
    """Look for a start that was recorded beforehand: nothing else would write there then."""
    found = (_running(pid, since_ticks, str(log_path)) for pid in leaders_writing(log_path))
    return next(filter(None, found), _NOTHING)


def _running(pid: int, since_ticks: int, mark: str) -> FoundProcess | None:
    pidfd, ticks = procfs.open_pidfd(pid), procfs.start_ticks(pid)
    if pidfd is None:
        return None
    if ticks is None or ticks < since_ticks:
        os.close(pidfd)
        return None
    return FoundProcess(
        Presence.RUNNING, ChildProcess(pid, ticks, pidfd, 0, mark=mark), recorded=False
    )


def _traits(
    pid: int, sought: WorkerFingerprint, place: LogPlace, inodes: frozenset[int]
) -> ProcessEvidence:
    writes = writes_log(pid, place)
    # The interpreter of a script comes before the arguments that were given.
    arguments = procfs.command_line(pid)[-len(sought.argv) :] if sought.argv else ()
    fits = bool(sought.argv) and arguments == sought.argv
    if not (writes or fits):
        return ProcessEvidence(False, False, False, False)
    return ProcessEvidence(
        writes_log=writes,
        argv_fits=fits,
        bears_mark=mark_of(pid) == str(sought.log_path),
        holds_port=owner_of(inodes, session_members(pid)) is Owner.OURS,
    )


def inodes_at(host: str, port: int) -> frozenset[int]:
    """Return the sockets that listen there; none at port 0, or if that cannot be seen."""
    try:
        return listening_inodes(host, port) if port else frozenset()
    except OSError:
        return frozenset()


def is_there(entry: Entry) -> bool:
    """Whether anything is left of a worker's process."""
    found = find(entry)
    if found.child is not None:
        found.child.let_go()
    return found.presence is not Presence.GONE


def unrecorded_life(life: Lifecycle, now_ns: int) -> Lifecycle:
    """Return the life of a process that was found although no journal names it."""
    return replace(
        life,
        state=WorkerState.STARTING,
        presence=Presence.RUNNING,
        generation=life.generation + 1,
        since_ns=now_ns,
        last_signal=None,
        restarting=False,
    )


def _recorded(entry: Entry, pid: int) -> FoundProcess:
    """Look for the very process that an entry names."""
    pidfd, ticks = procfs.open_pidfd(pid), procfs.start_ticks(pid)
    if pid == os.getpid() or (ticks is not None and ticks != entry.start_ticks):
        if pidfd is not None:
            os.close(pidfd)
        return _NOTHING
    if pidfd is None:
        # A process of its session that writes its log proves that the session is still its own.
        pidfd = _member(entry, pid)
    if pidfd is None:
        return _NOTHING
    child = ChildProcess(pid, entry.start_ticks, pidfd, entry.log_start_bytes, mark=entry.log_path)
    if procfs.is_alive(pid):
        return FoundProcess(Presence.RUNNING, child)
    if child.survivors():
        return FoundProcess(Presence.LEFTOVER, child)
    child.let_go()
    return _NOTHING


def _member(entry: Entry, session: int) -> int | None:
    """Return a pidfd of a process that was left by a leader who has gone."""
    place = log_place(Path(entry.log_path))
    for pid in own_processes():
        ticks = procfs.start_ticks(pid)
        if ticks is None or ticks < entry.start_ticks:
            continue
        marked = mark_of(pid) == entry.log_path
        if not marked and not (procfs.session_of(pid) == session and writes_log(pid, place)):
            continue
        pidfd = procfs.open_pidfd(pid)
        if pidfd is not None and (marked or procfs.session_of(pid) == session):
            return pidfd
        if pidfd is not None:
            os.close(pidfd)
    return None
