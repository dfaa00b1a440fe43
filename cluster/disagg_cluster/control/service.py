"""A running daemon's end of all requests: the core, and the sockets at which it is asked."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping

from disagg_cluster.control.core import ControlCore
from disagg_cluster.control.decisions import Orders
from disagg_cluster.control.messages import (
    DaemonView,
    NodeOverview,
    PauseWorkers,
    RestartWorker,
    ResumeWorkers,
    Verb,
    WorkerView,
)
from disagg_cluster.control.socket_server import ControlSocket
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.lifecycle.deadlines import due_ns
from disagg_cluster.lifecycle.state import Event, PauseRequested, RestartRequested, UnpauseRequested
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSnapshot
from disagg_exporter import __version__
from disagg_exporter.model import CollectorStatus


class SupervisedNode:
    """Shows a supervisor and passes orders on to it (a `ControlledNode` of `ControlCore`).

    Args:
        supervisor: The workers.
        daemon: How the daemon itself stands.
    """

    def __init__(self, supervisor: Supervisor, daemon: Callable[[], DaemonView]) -> None:
        self._supervisor = supervisor
        self._daemon = daemon

    def view(self) -> NodeOverview:
        """How the node stands now."""
        now_ns = time.monotonic_ns()
        snapshots = self._supervisor.snapshots()
        return NodeOverview(self._daemon(), tuple(worker_view(each, now_ns) for each in snapshots))

    def obey(self, orders: Orders) -> None:
        """Hand each worker what was decided."""
        for worker in orders.workers:
            self._supervisor.handle(worker, event_of(orders.verb))


def worker_view(snapshot: WorkerSnapshot, now_ns: int) -> WorkerView:
    """One worker as requests see it at `now_ns`."""
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
        role=spec.role_text if spec.in_front else tag.role.value,
        gpus=tag.gpus,
        host=tag.host,
        port=tag.port,
        restart_seconds=policy.drain_seconds + policy.stop_seconds + policy.start_seconds,
        deadline_seconds=None if due is None else max(due - now_ns, 0) / 1e9,
        log_path=str(spec.log_path),
    )


def event_of(verb: Verb) -> Event:
    """What an order means to the worker that it is for."""
    match verb:
        case PauseWorkers():
            return PauseRequested()
        case ResumeWorkers():
            return UnpauseRequested()
        case RestartWorker(_, drain):
            return RestartRequested(drain)
        case _:
            raise ValueError(f"{verb} is no order")


class ControlService:
    """Lets people and programs of this node steer its workers.

    Args:
        node: The node's name.
        folder: Where the socket is to be.
        log: Logs every change that was asked for, and by whom.
    """

    def __init__(self, node: str, folder: RunFolder, log: logging.Logger) -> None:
        self._node = node
        self._folder = folder
        self._log = log
        self._start_ns = time.monotonic_ns()
        self._stopping = False
        self._core: ControlCore | None = None
        self._socket: ControlSocket | None = None

    @contextlib.asynccontextmanager
    async def serving(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """Answer requests about these workers until the block ends."""
        self._core = ControlCore(SupervisedNode(supervisor, self._view), self._log)
        self._socket = ControlSocket(self._folder.control, self._core, self._log)
        async with self._socket.serving():
            yield

    def refuse(self) -> None:
        """The daemon ends: change nothing any more."""
        self._stopping = True

    def changed(self) -> None:
        """A worker has changed."""
        if self._core is not None:
            self._core.changed()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many requests came, by verb and outcome."""
        return {} if self._core is None else dict(self._core.counts)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Whether requests can be answered."""
        return () if self._socket is None else (self._socket.status(),)

    def _view(self) -> DaemonView:
        """The daemon itself, as those who ask it see it."""
        return DaemonView(
            version=__version__,
            pid=os.getpid(),
            node=self._node,
            run_dir=str(self._folder.path),
            uptime_seconds=(time.monotonic_ns() - self._start_ns) / 1e9,
            stopping=self._stopping,
        )
