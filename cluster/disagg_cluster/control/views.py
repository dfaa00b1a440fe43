"""How a node stands, as those see it who ask its daemon and who decide about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_cluster.lifecycle.reassignment.progress import Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker.

    `incarnation` numbers its starts. It is in `state` for `state_seconds`, for the `reason` given
    last, and paused for `paused_seconds`, None if it is not. `restarting`: it ends to be started
    anew. A restart may take `restart_seconds`: its drain, its end and its start. In
    `deadline_seconds` time alone changes something, None if it does not: a start or a drain is
    given up, a worker in back-off is started. Its process has `role`, the node file says
    `file_role`; the router sends it requests as `routed_as`, none if empty. `drained`: it is to get
    none until it is resumed; `idle`: it has none. `unanswered` is why its last health probe was not
    answered well, empty if it was, or if none is to be answered in its state.
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
    deadline_seconds: float | None = None
    log_path: str = ""
    drain_seconds: float = 0.0
    model_name: str = ""
    file_role: str = ""
    routed_as: str = ""
    drained: bool = False
    idle: bool = False
    unanswered: str = ""

    @property
    def paused(self) -> bool:
        """Whether it is only observed."""
        return self.paused_seconds is not None

    @property
    def has_no_requests(self) -> bool:
        """Whether none is left of one that is drained: without a process there is none."""
        gone = self.state in (WorkerState.BACKOFF, WorkerState.FAILED) and self.pid is None
        return self.idle or gone

    @property
    def left_text(self) -> str:
        """What is known of the requests of one that is drained."""
        if self.has_no_requests:
            return "it has no request left"
        if self.state is WorkerState.STARTING:
            return "whether requests still run is known once it is ready"
        silent = "it does not tell whether requests still run"
        return silent if self.unanswered else "requests still run"

    @property
    def being_stopped(self) -> bool:
        """Whether somebody asked that it ends and stays away."""
        return self.state is WorkerState.DRAINING and not self.restarting


@dataclass(frozen=True, slots=True)
class DaemonView:
    """The daemon itself; `stopping`: it ends, or leaves its workers to the next one.

    `waiting`: what its node file said otherwise when it was read last, and only the next daemon
    takes in; what is about a worker begins with its name. `node_file` says that it was written
    since, has problems or is gone; empty if it is as it was taken in.
    """

    version: str
    pid: int
    node: str
    run_dir: str
    uptime_seconds: float
    stopping: bool = False
    waiting: tuple[str, ...] = ()
    node_file: str = ""


@dataclass(frozen=True, slots=True)
class MoveView:
    """The last move of a worker to another role: which `step` it has come to, of those of a move.

    `undone`: it is on its way back, or came back, for the reason `why`. `id` is the request's.
    """

    id: str
    worker: str
    from_role: str
    to_role: str
    step: str
    undone: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision about a worker's role looks at beside the workers.

    `membership` is whether the node's router takes engines and lets them go while it runs: `live`
    or `fixed`, empty without a router. `elsewhere` are the roles of the engines on other nodes that
    it knows. `misfits` are the reasons for which a worker cannot have a role, `strangers` what
    processes that are nobody's do on a worker's GPUs.
    """

    membership: str = ""
    elsewhere: frozenset[Role] = frozenset()
    misfits: Mapping[tuple[str, Role], tuple[str, ...]] = field(default_factory=dict)
    strangers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """Everything that a decision looks at; `move` is the last worker that was reassigned."""

    daemon: DaemonView
    workers: tuple[WorkerView, ...] = ()
    move: Reassignment | None = None
    around: Surroundings = Surroundings()

    def worker(self, name: str) -> WorkerView | None:
        """The worker of that name."""
        return next((worker for worker in self.workers if worker.worker == name), None)
