"""Existing run folders: which one is in use, and its workers that no journal names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import mark_of, own_leaders, stdout_path
from disagg_cluster.host.run_dir.layout import (
    RunFolder,
    default_run_dir,
    older_run_dirs,
)
from disagg_cluster.host.run_dir.lock import holder
from disagg_cluster.host.tcp_listeners import (
    Owner,
    all_listeners,
    owner_of,
    session_members,
    socket_inodes,
)
from disagg_cluster.lifecycle.state import Lifecycle, Presence, WorkerIdentity, WorkerState
from disagg_cluster.supervisor.journal.journal import here, load
from disagg_cluster.supervisor.journal.journal_text import Entry, JournalError
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.ownership.adoption import ProcessEvidence, proves_worker

_LOG = re.compile(r"([a-z0-9-]{1,40})\.log(\..*)?")
_USUAL = RestartPolicy()


def usual_run_dir(environ: Mapping[str, str], uid: int) -> Path:
    """Return the folder of a daemon without a `run_dir`.

    While a daemon of an earlier version runs in its own default folder, or engines that it left do,
    that folder is kept: their sockets and logs are there. Afterwards it is the new one.
    """
    usual = default_run_dir(environ, uid)
    folders = (usual, *older_run_dirs(environ, uid))
    return next((folder for folder in folders if _is_in_use(RunFolder(folder))), usual)


def _is_in_use(folder: RunFolder) -> bool:
    if holder(folder.lock) is not None:
        return True
    try:
        entries = load(folder.journal, here())
    except JournalError:
        return False
    return any(map(adoption.is_there, entries))


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """The first process of what is left of a worker. `proven`: it is the worker's beyond doubt."""

    worker: str
    pid: int
    start_ticks: int
    argv: tuple[str, ...]
    proven: bool


def unrecorded(
    folder: RunFolder, known: Collection[int | None] = (), ports: Mapping[str, int] | None = None
) -> tuple[Unrecorded, ...]:
    """Return each worker's oldest process that writes a log here, deleted or not, or has its mark.

    Args:
        folder: Its folder, there or not.
        known: Pids that a journal names; they and their families are left out.
        ports: The port of each worker, as far as it is known.
    """
    logs = f"{os.path.realpath(folder.path)}/logs"
    first: dict[str, Unrecorded] = {}
    named: set[str] = set()
    for pid in own_leaders():
        written, marked = _worker_of(stdout_path(pid), logs), _worker_of(mark_of(pid), logs)
        worker = written or marked
        if pid in known:
            named.add(worker)
        if not worker or worker in first or worker in named:
            continue
        inodes = adoption.inodes_at("127.0.0.1", (ports or {}).get(worker, 0))
        holds = owner_of(inodes, session_members(pid)) is Owner.OURS
        # One that inherited the mark and writes elsewhere is a helper that outlived its worker.
        traits = ProcessEvidence(True, argv_fits=False, bears_mark=bool(marked), holds_port=holds)
        proven = proves_worker(traits)
        ticks = procfs.start_ticks(pid)
        if ticks is not None:
            first[worker] = Unrecorded(worker, pid, ticks, procfs.command_line(pid), proven)
    return tuple(found for _, found in sorted(first.items()))


def entry_of(found: Unrecorded, folder: RunFolder, ports: Mapping[str, int] | None = None) -> Entry:
    """Return a journal entry for it, as far as it can be observed.

    One that listens nowhere has no requests to wait for.
    """
    port = (ports or {}).get(found.worker) or _port_of(found)
    return Entry(
        worker=found.worker,
        life=Lifecycle(WorkerState.READY, Presence.RUNNING, generation=1),
        pid=found.pid,
        start_ticks=found.start_ticks,
        argv=tuple(word.replace("\0", "") for word in found.argv),
        environment="",
        log_path=str(folder.log(found.worker).absolute()),
        log_start_bytes=0,
        started_timestamp_seconds=0.0,
        tag=WorkerIdentity(port=port),
        drain_seconds=_USUAL.drain_seconds if port else 0.0,
        stop_seconds=_USUAL.stop_seconds,
    )


def stated_port(argv: Sequence[str]) -> int:
    """Return the port that the arguments of an engine state; 0 if they state none."""
    stated = (value for option, value in pairwise(argv) if option == "--port" and value.isdigit())
    return next((int(value) for value in stated if int(value) <= 65535), 0)


def _worker_of(path: str, logs: str) -> str:
    """Return the worker whose log of this folder a path names; empty if it names none."""
    parent, _, name = path.rpartition("/")
    fits = _LOG.fullmatch(name)
    return fits[1] if fits and (parent == logs or os.path.realpath(parent) == logs) else ""


def _port_of(found: Unrecorded) -> int:
    """Return the port it states, else one that its session listens on; 0 if there is none."""
    if port := stated_port(found.argv):
        return port
    try:
        listening = all_listeners()
        held = {inode for pid in session_members(found.pid) for inode in socket_inodes(pid)}
    except OSError:
        return 0
    return min((port for inode, (_, port) in listening.items() if inode in held), default=0)
