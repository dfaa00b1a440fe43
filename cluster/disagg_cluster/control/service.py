"""The daemon's control service: the core and the sockets that serve it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.messages import (
    ChangeVerb,
    DrainWorker,
    PauseWorkers,
    ReassignWorker,
    RestartWorker,
    ResumeWorkers,
)
from disagg_cluster.control.refusal import RefusalReason
from disagg_cluster.control.reloading import Reread
from disagg_cluster.control.socket_server import ControlSocket
from disagg_cluster.control.views import DaemonView, NodeOverview, RoleConstraints, WorkerView
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.lifecycle.deadlines import due_ns
from disagg_cluster.lifecycle.reassignment.progress import Reassignment
from disagg_cluster.lifecycle.state import (
    Event,
    Lifecycle,
    PauseRequested,
    RestartRequested,
    UnpauseRequested,
    WorkerState,
)
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot
from disagg_exporter import __version__
from disagg_exporter.model import CollectorStatus


@dataclass(frozen=True, slots=True)
class RoutingView:
    """What requests a worker gets; the fields are those of `WorkerView` with the same names."""

    file_role: str = ""
    routed_as: str = ""
    drained: bool = False
    remaining: str = ""


class WorkerRouting(Protocol):
    """Reports what requests the workers get, and drains or moves them."""

    @property
    def move(self) -> Reassignment | None:
        """The last reassignment, finished or in progress."""

    def constraints(self) -> RoleConstraints:
        """The facts besides the workers that decisions about roles need."""

    def routing_of(self, worker: str) -> RoutingView:
        """What requests a worker gets."""

    def begin(self, verb: ReassignWorker, request_id: str) -> None:
        """Begin to move a worker to another role."""

    def drain(self, worker: str) -> None:
        """Send a worker no new requests until it is resumed."""

    def end_drain(self, worker: str) -> None:
        """Send it requests again if it was drained."""


class SupervisedNode:
    """Adapts a supervisor to `ControlledNode`, the interface that `ControlCore` uses.

    Args:
        supervisor: Runs the workers.
        daemon: Returns the state of the daemon itself.
        work: Reports and changes what requests the workers get.
    """

    def __init__(
        self, supervisor: Supervisor, daemon: Callable[[], DaemonView], work: WorkerRouting
    ) -> None:
        self._supervisor = supervisor
        self._daemon = daemon
        self._work = work

    def view(self) -> NodeOverview:
        """The current state of the node."""
        now_ns = time.monotonic_ns()
        snapshots = self._supervisor.snapshots()
        workers = tuple(
            worker_view(each, now_ns, self._work.routing_of(each.spec.name)) for each in snapshots
        )
        constraints = self._work.constraints()
        daemon = replace(self._daemon(), unwritten=constraints.unwritten)
        return NodeOverview(daemon, workers, self._work.move, constraints)

    def obey(self, orders: Orders, request_id: str) -> None:
        """Pass the orders to each worker."""
        for worker in orders.workers:
            match orders.verb:
                case ReassignWorker() as verb:
                    self._work.begin(verb, request_id)
                case DrainWorker():
                    self._work.drain(worker)
                case ResumeWorkers() as verb:
                    if verb.worker is not None:
                        self._work.end_drain(worker)
                    self._supervisor.handle(worker, event_of(verb))
                case verb:
                    self._supervisor.handle(worker, event_of(verb))


def worker_view(snapshot: WorkerSnapshot, now_ns: int, work: RoutingView) -> WorkerView:
    """The control view of one worker at `now_ns`."""
    spec, life, tag = snapshot.spec, snapshot.life, snapshot.tag
    policy = spec.policy
    paused_ns, due = life.paused_ns, due_ns(life, policy)
    return WorkerView(
        worker=spec.name,
        state=life.state,
        incarnation=life.generation,
        pid=snapshot.pid,
        state_seconds=max(now_ns - life.since_ns, 0) / 1e9,
        paused_seconds=None if paused_ns is None else max(now_ns - paused_ns, 0) / 1e9,
        restarting=life.restarting,
        restarts=life.restarts,
        reason=snapshot.reason,
        cause=snapshot.cause,
        role=spec.role_text if spec.in_front else tag.role.value,
        gpus=tag.gpus,
        host=tag.host,
        port=tag.port,
        restart_seconds=policy.drain_seconds + policy.stop_seconds + policy.start_seconds,
        deadline_seconds=None if due is None else max(due - now_ns, 0) / 1e9,
        log_path=str(spec.log_path),
        drain_seconds=policy.drain_seconds,
        model_name=tag.model_name,
        file_role=work.file_role,
        routed_as=work.routed_as,
        drained=work.drained,
        idle=work.drained and not work.remaining,
        remaining=work.remaining,
        unanswered=_unanswered(life),
    )


def _unanswered(life: Lifecycle) -> str:
    """Why the last probe of a worker that should be serving failed; empty if it did not."""
    silent = life.state is WorkerState.READY and life.up is False
    return life.probe_why if silent else ""


def event_of(verb: ChangeVerb) -> Event:
    """The lifecycle event that an order means for its worker."""
    match verb:
        case PauseWorkers():
            return PauseRequested()
        case ResumeWorkers():
            return UnpauseRequested()
        case RestartWorker(_, drain):
            return RestartRequested(drain)
        case _:
            raise ValueError(f"{verb} is no order")


Transport = Callable[[ControlCore], contextlib.AbstractAsyncContextManager[None]]


class ControlService:
    """Serves control requests from users and programs of this node.

    Args:
        node: The node's name.
        folder: The run folder that holds the socket.
        log: Logs every requested change and its caller.
    """

    def __init__(self, node: str, folder: RunFolder, log: logging.Logger) -> None:
        self._node = node
        self._folder = folder
        self._log = log
        self._start_ns = time.monotonic_ns()
        self._stopping = False
        self._node_file: Callable[[], str] = str
        self._core: ControlCore | None = None
        self._socket: ControlSocket | None = None

    @contextlib.asynccontextmanager
    async def serving(
        self,
        supervisor: Supervisor,
        work: WorkerRouting,
        reread: Reread,
        beside: Transport,
        node_file: Callable[[], str] = str,
    ) -> AsyncIterator[None]:
        """Answer requests about these workers and their node file until the block ends.

        `beside` serves the same core over another transport; `node_file` reports whether the file
        has changed since it was applied.
        """
        self._node_file = node_file
        self._core = ControlCore(SupervisedNode(supervisor, self._view, work), self._log, reread)
        self._socket = ControlSocket(self._folder.control, self._core, self._log)
        async with self._socket.serving(), beside(self._core):
            yield
            # Both transports can still send the final replies of watches.
            self._core.end_watches()

    def refuse(self) -> None:
        """Refuse all changes from now on, because the daemon is ending."""
        self._stopping = True

    def changed(self) -> None:
        """Report that a worker has changed."""
        if self._core is not None:
            self._core.changed()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Number of requests by verb and outcome."""
        return {} if self._core is None else dict(self._core.counts)

    def refusals(self) -> Mapping[str, int]:
        """Number of refused requests for every reason, including zeros."""
        found = {} if self._core is None else self._core.refusals
        return {reason.value: found.get(reason, 0) for reason in RefusalReason}

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of the control socket."""
        return () if self._socket is None else (self._socket.status(),)

    def _view(self) -> DaemonView:
        """The state of the daemon itself."""
        return DaemonView(
            version=__version__,
            pid=os.getpid(),
            node=self._node,
            run_dir=str(self._folder.path),
            uptime_seconds=(time.monotonic_ns() - self._start_ns) / 1e9,
            stopping=self._stopping,
            waiting=() if self._core is None else self._core.waiting,
            node_file=self._node_file(),
        )
