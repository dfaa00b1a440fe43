"""All workers of the node, started together and stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from disagg_cluster.host.libc import is_subreaper
from disagg_cluster.lifecycle.failures import OnFailure
from disagg_cluster.lifecycle.state import (
    Event,
    Lifecycle,
    Presence,
    StartRequested,
    StopRequested,
    WorkerIdentity,
    WorkerState,
)
from disagg_cluster.supervisor.device_holder import device_holder, gpus_held
from disagg_cluster.supervisor.ending import left, wait_until_ended
from disagg_cluster.supervisor.health.prober import Probe, Prober
from disagg_cluster.supervisor.health.readiness import probe as probe_worker
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.journal.journal_text import Entry
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups
from disagg_cluster.supervisor.process.family import Descendants
from disagg_cluster.supervisor.process.retries import DescriptorReserve, SupervisionHealth
from disagg_cluster.supervisor.worker_spec import (
    OnChange,
    SupervisorContext,
    WorkerSnapshot,
    WorkerSpec,
)
from disagg_cluster.supervisor.worker_supervisor import WorkerSupervisor
from disagg_exporter.model import CollectorStatus, EnginePage, Role, WorkerStatus


def _inherited(added: Mapping[str, str]) -> Mapping[str, str]:
    return {**os.environ, **added}


class Supervisor:
    """The node's workers; made, used and stopped inside one running loop.

    Args:
        specs: The workers, by different names.
        on_change: Receives every change, see `OnChange`.
        page_of: Returns a worker's last metrics page; a drain is over when a page made after its
            begin shows no request.
        journal: Where to write what the next daemon must know; nowhere if None.
        health_seconds: How often each worker is probed.
        probe_seconds: The deadline of one probe, for a worker that sets none.
        child_environment: The whole environment of a worker, given what its command adds.
        groups: The control groups of the workers; none if None.
        worked_ns: When a worker last worked, see `SupervisorContext`.
        on_failure: Receives each failure of a worker.
        probe, clock, log: Seams; see `SupervisorContext`.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        on_change: OnChange,
        page_of: Callable[[str], EnginePage | None],
        *,
        journal: Journal | None = None,
        health_seconds: float = 1.0,
        probe_seconds: float = 2.0,
        child_environment: Callable[[Mapping[str, str]], Mapping[str, str]] = _inherited,
        worked_ns: Callable[[str], int | None] = lambda _worker: None,
        on_failure: OnFailure = lambda _failure: None,
        probe: Probe = probe_worker,
        clock: Callable[[], int] = time.monotonic_ns,
        groups: ControlGroups | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._log = log = log or logging.getLogger(__name__)
        self._probing = Prober(probe, probe_seconds, len(specs))
        self._reserve = DescriptorReserve()
        self._groups = groups or ControlGroups(None, "", log)
        self._supervision = SupervisionHealth(log)
        self._context = context = SupervisorContext(
            on_change=on_change,
            page_of=page_of,
            record=self.record,
            probe=self._probing.probe,
            child_environment=child_environment,
            health_seconds=health_seconds,
            clock=clock,
            wall=time.time,
            jitter=random.random,
            log=log,
            supervision=self._supervision,
            reserve=self._reserve,
            groups=self._groups,
            worked_ns=worked_ns,
            on_failure=on_failure,
            device_holder=lambda spec: device_holder(spec, self.snapshots(), self._strays),
        )
        self._descendants = Descendants(is_subreaper())
        self._journal = journal
        self._strays: tuple[Entry, ...] = ()
        self._unadopted: dict[str, Entry] = {}
        self._supervised = tuple(WorkerSupervisor(spec, context) for spec in specs)
        self._by_name = {one.spec.name: one for one in self._supervised}
        self._begun = self._stopping = self._leaving = False

    def adopt(self, entries: Sequence[Entry], *, wanted: bool = True) -> None:
        """Continue with the previous daemon's workers; before `start`, and without a pause.

        What is left of workers without a specification is left alone and kept in the journal.

        Args:
            entries: The journal's entries.
            wanted: Whether they are to run, and be restarted; otherwise they are stopped.
        """
        self._begun = True
        self._unadopted = {e.worker: e for e in entries if e.worker in self._by_name}
        strays = [entry for entry in entries if entry.worker not in self._by_name]
        there = tuple(entry for entry in strays if adoption.is_there(entry))
        # A pause is kept until its worker is named again.
        paused = (e for e in strays if e not in there and e.life.paused_ns is not None)
        self._strays = (*there, *paused)
        for stray in there:
            self._log.warning(
                "%s is not in the node file and goes on without us (pid %s); "
                "`disagg-node stop --workers` ends it",
                stray.worker,
                stray.pid,
            )
        for one in self._supervised:
            self._adopt(one, self._unadopted.get(one.spec.name), wanted=wanted)

    def _adopt(self, one: WorkerSupervisor, entry: Entry | None, *, wanted: bool) -> None:
        """Continue with what is left of a worker, if anything is."""
        if entry is not None:
            found = self._reserve.run(partial(adoption.find, entry))
            # Only once it was found: if that fails, the journal must still name it.
            self._unadopted.pop(one.spec.name, None)
            one.adopt(entry, found, wanted=wanted)
            return
        found = adoption.find_unrecorded(one.spec.sought)
        if found.presence is not Presence.GONE:
            one.adopt(None, found, wanted=wanted)

    async def start(self) -> None:
        """Start all workers at once; returns when they run, long before they are ready.

        Adopted workers continue as they are.
        """
        self._begun = True
        for one in self._supervised:
            if self._stopping:
                return
            if one.life.state is WorkerState.STOPPED:
                one.handle(StartRequested())
            await asyncio.sleep(0)

    async def stop(self, drain: bool = True) -> tuple[str, ...]:
        """Drain, end and if need be kill all workers; returns the names of those still there.

        Workers in front of the others end first. Only a process stuck in the kernel can still be
        there. Called again with `drain` false meanwhile, it waits for no more requests.
        """
        self._stopping = True
        for in_front in (True, False):
            stage = [one for one in self._supervised if one.spec.in_front is in_front]
            for one in stage:
                one.handle(StopRequested(drain=drain))
            await asyncio.gather(*(wait_until_ended(one) for one in stage))
        await self._close()
        return tuple(one.spec.name for one in self._supervised if not one.ended.is_set())

    def add(self, spec: WorkerSpec) -> None:
        """Add one more worker; `begin` starts it."""
        self._probing.allow_one_more()
        one = self._by_name[spec.name] = WorkerSupervisor(spec, self._context)
        self._supervised += (one,)

    def begin(self, worker: str) -> None:
        """Start a worker that was added, or continue with what runs of it."""
        one = self._by_name[worker]
        stray = next((entry for entry in self._strays if entry.worker == worker), None)
        self._strays = tuple(entry for entry in self._strays if entry is not stray)
        self._adopt(one, stray, wanted=True)
        if one.life.state is WorkerState.STOPPED and not self._stopping:
            one.handle(StartRequested())

    async def end(self, worker: str) -> bool:
        """Drain and end one; return whether nothing is left of it, and it was not restarted."""
        one = self._by_name[worker]
        one.handle(StopRequested())
        await wait_until_ended(one)
        return one.ended.is_set()

    async def forget(self, worker: str) -> None:
        """Forget one that has ended, from this call on."""
        one = self._by_name.pop(worker)
        self._supervised = tuple(each for each in self._supervised if each is not one)
        self.record()
        await one.close()

    async def leave(self) -> None:
        """Only stop supervising: the workers run on, and the next daemon adopts them."""
        self._stopping = self._leaving = True
        self.record()
        await self._close()

    def record(self) -> None:
        """Write the state of all workers to the journal; not before their old state is known."""
        if self._journal is None or not self._begun:
            return
        present = (one.entry() for one in self._supervised if one.spec.name not in self._unadopted)
        entries = [*self._strays, *self._unadopted.values(), *present]
        if self._leaving:
            entries = left(entries, self._journal.assignments.binding, self._context.clock())
        self._journal.write(entries)

    def tag(self, worker: str) -> WorkerIdentity:
        """The identity with which a worker's process was started."""
        return self._by_name[worker].tag

    def command_digest(self, worker: str) -> str:
        """A fingerprint of the command that started a worker's process."""
        return self._by_name[worker].command_digest

    def logs(self) -> Mapping[str, Path]:
        """The logs of all workers, those left alone included."""
        logs = {entry.worker: Path(entry.log_path) for entry in self._strays}
        return logs | {one.spec.name: one.spec.log_path for one in self._supervised}

    def gpus_held(self) -> Mapping[str, str]:
        """By GPU, the worker whose process runs there, those left alone included."""
        return gpus_held(self.snapshots(), self._strays)

    def writers(self) -> Mapping[str, int]:
        """The pid that writes each log now: the leader, for each worker that runs."""
        children = ((one.spec.name, one.child) for one in self._supervised)
        return {name: child.pid for name, child in children if child is not None}

    def scan_descendants(self) -> None:
        """Record each worker's descendants: they end with it even if they leave its session."""
        children = [one.child for one in self._supervised if one.child is not None]
        # Without free descriptors the scan is repeated some seconds later.
        with suppress(OSError):
            self._descendants.scan([child.pid for child in children])
        for child in children:
            child.family.descendants = partial(self._descendants.of, child.pid)

    def log_was_cut(self, worker: str) -> None:
        """Record that a worker's log was rotated."""
        if worker in self._by_name:
            self._by_name[worker].log_was_cut()

    def handle(self, worker: str, event: Event) -> None:
        """Pass an event to a worker."""
        self._by_name[worker].handle(event)

    def respecify(self, spec: WorkerSpec) -> None:
        """Use another specification for the worker of that name from its next start on."""
        self._by_name[spec.name].spec = spec

    def retag(self, worker: str, role: Role) -> None:
        """Record that a worker's engine has switched role in the same process."""
        self._by_name[worker].retag(role)
        self.record()

    def snapshots(self) -> tuple[WorkerSnapshot, ...]:
        """The state of every worker, in the order given."""
        return tuple(one.snapshot() for one in self._supervised)

    @property
    def unwatched_seconds(self) -> float:
        """How long the least recently checked worker has gone unchecked."""
        return max((one.unwatched_seconds for one in self._supervised), default=0.0)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Every worker as the metrics page shows it, in the order given."""
        return tuple(one.status() for one in self._supervised)

    def pid(self, worker: str) -> int | None:
        """The leader pid of a worker's present process, dead or alive; None without one."""
        return self._by_name[worker].entry().pid

    def up(self, worker: str) -> bool | None:
        """Whether a worker answered its last probe; None if none has been made, or could be."""
        return self._by_name[worker].life.up

    def life(self, worker: str) -> Lifecycle:
        """A worker's lifecycle."""
        return self._by_name[worker].life

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of supervision itself."""
        self._reserve.refill()
        return (self._supervision.status(), *self._groups.collectors())

    async def _close(self) -> None:
        for one in self._supervised:
            await one.close()
        self._probing.close()
        self._reserve.close()
