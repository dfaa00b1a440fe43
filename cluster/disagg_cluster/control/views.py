"""How a daemon and its workers stand, as requests are decided by and answered with."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_cluster.lifecycle.state import WorkerState


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker.

    `incarnation` numbers its starts. It is in `state` for `state_seconds`, for the `reason` given
    last, and paused for `paused_seconds`, None if it is not. `restarting`: it ends to be started
    anew. A restart may take `restart_seconds`: its drain, its end and its start.
    """

    worker: str
    state: WorkerState
    incarnation: int = 0
    pid: int | None = None
    state_seconds: float = 0.0
    paused_seconds: float | None = None
    restarting: bool = False
    restarts: int = 0
    reason: str = ""
    role: str = ""
    gpus: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    restart_seconds: float = 0.0

    @property
    def paused(self) -> bool:
        """Whether it is only observed."""
        return self.paused_seconds is not None

    @property
    def being_stopped(self) -> bool:
        """Whether somebody asked that it ends and stays away."""
        return self.state is WorkerState.DRAINING and not self.restarting


@dataclass(frozen=True, slots=True)
class DaemonView:
    """The daemon itself; `stopping`: it ends, or leaves its workers to the next one."""

    version: str
    pid: int
    node: str
    run_dir: str
    uptime_seconds: float
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything that a decision looks at."""

    daemon: DaemonView
    workers: tuple[WorkerView, ...] = ()

    def worker(self, name: str) -> WorkerView | None:
        """The worker of that name."""
        return next((worker for worker in self.workers if worker.worker == name), None)
