"""Stops a daemon from outside, and workers left behind by one."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.config.tls import UNSPECIFIED_TLS
from disagg_cluster.control.client import MayNotAskError
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock, holder
from disagg_cluster.lifecycle.state import LaunchCommand, WorkerState
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.journal.journal import Journal, here, load
from disagg_cluster.supervisor.journal.journal_text import Entry, JournalError
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.ownership.run_folders import entry_of, unrecorded
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_cluster.telemetry.pages.page_scraper import PageScraper

Say = Callable[[str], None]

_POLL_SECONDS = 0.3
# Added to the deadlines of its workers, for the daemon's own steps.
_DAEMON_SECONDS = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that was asked to end, and whether it did; `name` is the worker's."""

    name: str
    pid: int | None
    ended: bool


def end_daemon(
    folder: RunFolder, say: Say, patience_seconds: float | None = None
) -> EndedProcess | None:
    """Ask the daemon of a run folder to drain and stop, and wait; None if none runs there.

    Args:
        folder: The run folder.
        say: Called with each change of a worker.
        patience_seconds: How long to wait; None to use the workers' deadlines.

    Raises:
        MayNotAskError: The daemon belongs to another user.
    """
    pid = holder(folder.lock)
    if pid is None:
        return None
    pidfd = procfs.open_pidfd(pid)
    if pidfd is None:
        return None
    try:
        # Checked again, so that the lock and the pidfd refer to the same process.
        if holder(folder.lock) != pid:
            return None
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGINT)
        except PermissionError:
            why = "is another user's: ask as root or as that user"
            raise MayNotAskError(f"the daemon (pid {pid}) {why}") from None
        say(f"daemon (pid {pid}): asked to stop")
        ended = _watch_end(pidfd, folder, say, patience_seconds)
    finally:
        os.close(pidfd)
    say(f"daemon (pid {pid}): " + ("ended" if ended else "is still there"))
    return EndedProcess("daemon", pid, ended)


def end_workers(
    folder: RunFolder, say: Say, ports: Mapping[str, int] | None = None
) -> tuple[EndedProcess, ...]:
    """End, and kill if necessary, the workers in the journal and others proven to be ours.

    Args:
        folder: Their run folder, which may be missing.
        say: Called with each change of a worker.
        ports: The known ports of workers.

    Raises:
        RunLockError: A daemon runs in the folder, or the folder is not ours.
    """
    if not folder.lock.exists() and not unrecorded(folder, (), ports):
        return ()
    with RunLock(folder.lock):
        journal = Journal(folder.journal, _log)
        left = [entry for entry in journal.read() if adoption.is_there(entry)]
        names = {entry.worker for entry in left}
        for found in unrecorded(folder, [entry.pid for entry in left], ports):
            if found.proven and found.worker not in names:
                say(f"{found.worker} (pid {found.pid}): no journal names it, and it is ours")
                left.append(entry_of(found, folder, ports))
        return asyncio.run(_end_all(left, journal, say)) if left else ()


def left_behind(folder: RunFolder) -> tuple[Entry, ...]:
    """Workers in the journal that are still running; none if the journal cannot be trusted."""
    return tuple(entry for entry in _entries(folder) if adoption.is_there(entry))


def unnamed(folder: RunFolder, known: Collection[int | None]) -> tuple[tuple[str, int], ...]:
    """Worker and pid of processes that write a worker's log but are not in the journal."""
    return tuple((found.worker, found.pid) for found in unrecorded(folder, known))


async def _end_all(entries: list[Entry], journal: Journal, say: Say) -> tuple[EndedProcess, ...]:
    ended: list[EndedProcess] = []
    for in_front in (True, False):
        stage = [entry for entry in entries if entry.in_front is in_front]
        later = [entry for entry in entries if entry.in_front < in_front]
        if stage:
            named = {entry.worker for entry in (*stage, *later)}
            paused = [entry for entry in journal.read() if entry.life.paused_ns is not None]
            kept = [entry for entry in paused if entry.worker not in named]
            ended += await _end_stage(stage, [*later, *kept], journal, say)
    return tuple(ended)


async def _end_stage(
    stage: list[Entry], later: list[Entry], journal: Journal, say: Say
) -> list[EndedProcess]:
    """End some workers; later stages and paused workers stay in the journal."""

    def changed(
        worker: str, _old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        process = "" if pid is None else f" (pid {pid})"
        say(f"{worker}{process}: {new.value}, {why.partition(chr(10))[0]}")

    # `changed` reports everything; failing scrapes are expected here.
    silent = logging.Logger("stopping", logging.CRITICAL)
    roots = {entry.worker: entry.tag.url for entry in stage}
    pages = PageScraper(lambda: roots, _POLL_SECONDS, lambda _worker: True, log=silent)
    supervisor = Supervisor(
        [_final_spec(entry) for entry in stage],
        changed,
        pages.page,
        journal=journal,
        health_seconds=_POLL_SECONDS,
        log=silent,
    )
    supervisor.adopt([*stage, *later], wanted=False)
    looking = asyncio.create_task(pages.run())
    left = await supervisor.stop()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    return [EndedProcess(entry.worker, entry.pid, entry.worker not in left) for entry in stage]


def _entries(folder: RunFolder) -> tuple[Entry, ...]:
    try:
        return load(folder.journal, here())
    except JournalError:
        return ()


def _final_spec(entry: Entry) -> WorkerSpec:
    """The spec of a worker that will not be started again."""
    tag = entry.tag
    return WorkerSpec(
        entry.worker,
        LaunchCommand(entry.argv, {}),
        Path(entry.log_path),
        ProbeTarget(
            tag.port,
            tag.model_name,
            tag.host,
            tls=None if tag.certificate_file is None else UNSPECIFIED_TLS.probing,
        ),
        RestartPolicy(drain_seconds=entry.drain_seconds, stop_seconds=entry.stop_seconds),
        role=tag.role,
        gpus=tag.gpus,
        in_front=entry.in_front,
    )


def _watch_end(pidfd: int, folder: RunFolder, say: Say, patience_seconds: float | None) -> bool:
    """Wait for a process to end; report state changes of its workers meanwhile."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    shown = {entry.worker: entry.life.state for entry in left_behind(folder)}
    until = None
    while not poll.poll(_POLL_SECONDS * 1000):
        entries = _entries(folder)
        states = {entry.worker: entry.life.state for entry in entries}
        for worker in shown:
            state = states.get(worker, WorkerState.STOPPED)
            if state is not shown[worker]:
                say(f"{worker}: {state.value}")
                shown[worker] = state
        if until is None:
            longest = max((e.drain_seconds + e.stop_seconds for e in entries), default=0.0)
            wait = longest + _DAEMON_SECONDS if patience_seconds is None else patience_seconds
            until = time.monotonic() + wait
        if time.monotonic() > until:
            return False
    return True
