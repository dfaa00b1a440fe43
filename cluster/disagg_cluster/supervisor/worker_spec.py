"""A worker's specification, the context of its supervisor, and the start of its process."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from disagg_cluster.config.masking import masked_arguments
from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.config.worker import WorkerLimits
from disagg_cluster.host.port_holder import port_holder
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.lifecycle.failures import OnFailure
from disagg_cluster.lifecycle.state import LaunchCommand, Lifecycle, WorkerIdentity, WorkerState
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget
from disagg_cluster.supervisor.journal.journal_text import Entry, digest
from disagg_cluster.supervisor.ownership.adoption import WorkerFingerprint, find_unrecorded
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups
from disagg_cluster.supervisor.process.child_process import ChildProcess, StartError, start
from disagg_cluster.supervisor.process.family import SharedScan
from disagg_cluster.supervisor.process.retries import DescriptorReserve, SupervisionHealth
from disagg_exporter.model import EnginePage, Role

_UNLIMITED = WorkerLimits()

OnChange = Callable[[str, WorkerState, WorkerState, int | None, str], None]
"""Receives worker, old state, new state, pid (None without a process) and why, inside the loop.

Called after every change of state and of the process: a restart without back-off goes from `ready`
or `starting` straight to `starting` with another pid, and a worker that was killed because it hung
is reported twice in `backoff`, with its pid and, when nothing is left of it, with None.
"""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What to run, where to log, where it should answer, and its deadlines.

    `role` and `gpus` (UUIDs) are what it is started for, `ranks` is the number of data-parallel
    ranks that divide them, `certificate_file` holds its server's certificate (None without TLS). A
    worker `in_front` of the others is ended first: requests that it has accepted need them.
    """

    name: str
    command: LaunchCommand
    log_path: Path
    target: ProbeTarget
    policy: RestartPolicy
    cwd: Path | None = None
    role: Role = Role.UNKNOWN
    gpus: tuple[str, ...] = ()
    ranks: int = 1
    certificate_file: str | None = None
    in_front: bool = False
    limits: WorkerLimits = _UNLIMITED

    @property
    def role_text(self) -> str:
        """Its role, or that it is the router."""
        return "router" if self.in_front else self.role.value

    @property
    def tag(self) -> WorkerIdentity:
        """The identity of a process that it starts."""
        target = self.target
        return WorkerIdentity(
            role=self.role,
            gpus=self.gpus,
            model_name=target.served_model_name,
            host=target.host,
            port=target.port,
            ranks=self.ranks,
            certificate_file=self.certificate_file,
        )

    def target_of(self, tag: WorkerIdentity) -> ProbeTarget:
        """Return where a process answers that an earlier specification may have started."""
        return replace(self.target, host=tag.host, port=tag.port, served_model_name=tag.model_name)

    @property
    def sought(self) -> WorkerFingerprint:
        """How a process that it started is recognised."""
        target = self.target
        return WorkerFingerprint(self.log_path, self.command.argv, target.host, target.port)

    def entry(self, start_ticks: int, started_timestamp_seconds: float) -> Entry:
        """Return the journal's entry of a process that is about to be started."""
        return Entry(
            worker=self.name,
            life=Lifecycle(),
            pid=None,
            start_ticks=start_ticks,
            argv=self.command.argv,
            environment=digest(self.command),
            log_path=str(self.log_path),
            log_start_bytes=0,
            started_timestamp_seconds=started_timestamp_seconds,
            tag=self.tag,
            drain_seconds=self.policy.drain_seconds,
            stop_seconds=self.policy.stop_seconds,
            in_front=self.in_front,
        )


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """State of one worker: the tag and pid of its process, and the reason of the state.

    `cause` is why it crashed last; empty if it has not.
    """

    spec: WorkerSpec
    life: Lifecycle
    tag: WorkerIdentity
    pid: int | None
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """What the supervisor of one worker needs from outside.

    `page_of` returns the last metrics page of a worker, None if there is none. `record` writes the
    state of all workers to the journal: before a decision is carried out, and after. `probe` is
    that of `Prober`. `child_environment` returns the whole environment of a child, given what its
    command adds. `clock` is CLOCK_MONOTONIC in ns, `wall` Unix seconds, `jitter` draws from 0..1.
    `worked_ns` returns an instant at or after which a worker finished a step or a request, None if
    none is known. `supervision` records actions that failed, `reserve` provides descriptors when
    none are left, `groups` makes control groups, `scan` lists all processes once for several
    workers. `on_failure` receives failures. `device_holder` names another process of ours on the
    GPUs or the port of a worker that is about to start; empty if there is none.
    """

    on_change: OnChange
    page_of: Callable[[str], EnginePage | None]
    record: Callable[[], None]
    probe: Callable[[ProbeTarget, int, frozenset[int]], Future[ProbeResult]]
    child_environment: Callable[[Mapping[str, str]], Mapping[str, str]]
    health_seconds: float
    clock: Callable[[], int]
    wall: Callable[[], float]
    jitter: Callable[[], float]
    log: logging.Logger
    supervision: SupervisionHealth
    reserve: DescriptorReserve
    groups: ControlGroups
    worked_ns: Callable[[str], int | None]
    on_failure: OnFailure
    scan: SharedScan = field(default_factory=SharedScan)
    device_holder: Callable[[WorkerSpec], str] = lambda _spec: ""


def start_or_adopt(spec: WorkerSpec, context: SupervisorContext) -> ChildProcess:
    """Start a worker's process, or adopt one of its own that the journal does not name.

    Raises:
        StartError: It cannot be started, or another process has its port or one of its GPUs.
    """
    command, target = spec.command, spec.target
    held = port_holder(target.host, target.port, masked_arguments)
    if held is not None:
        found = find_unrecorded(spec.sought)
        if found.child is None:
            ours = context.device_holder(spec)
            raise StartError(f"{held}; {ours}" if ours else held, refused=True)
        context.log.warning(
            "%s: %s; it is its own and is adopted, not started a second time", spec.name, held
        )
        return found.child
    if holder := context.device_holder(spec):
        raise StartError(holder, refused=True)
    environment = {
        **context.child_environment(command.env),
        WORKER_MARK: str(spec.log_path),
    }
    context.groups.prepare(spec.name, spec.log_path, spec.limits)
    child = start(command.argv, environment, spec.log_path, spec.cwd)
    context.groups.enter(spec.name, child, spec.limits)
    return child
