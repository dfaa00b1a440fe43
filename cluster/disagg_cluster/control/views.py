"""The state of a node as clients see it and decisions use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_cluster.lifecycle.reassignment.progress import MoveStep, Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker.

    `incarnation` numbers its starts. It has been in `state` for `state_seconds`, with the last
    `reason`, and paused for `paused_seconds` (None if it is not). `restarting`: it is ending in
    order to start again. A restart may take `restart_seconds`: drain, stop and start.
    `deadline_seconds` is the time until the state changes without an event (a start or a drain
    times out, a worker in back-off is started), None if it does not. `role` is the role of its
    process, `file_role` the one in the node file; the router sends it requests as `routed_as`, none
    if empty, and `unknown` while it does not tell its engines. `drained`: it gets none until it is
    resumed; `idle`: it has none, else `remaining` says what it still has to do. `unanswered` says
    why its last health probe failed; empty if it succeeded or none is expected in this state.
    `cause` says why it crashed last; empty if it has not.
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
    remaining: str = ""
    cause: str = ""

    @property
    def paused(self) -> bool:
        """Whether it is only observed."""
        return self.paused_seconds is not None

    @property
    def has_no_requests(self) -> bool:
        """Whether a drained worker has no requests left; without a process it has none."""
        gone = self.state in (WorkerState.BACKOFF, WorkerState.FAILED) and self.pid is None
        return self.idle or gone

    @property
    def has_drained(self) -> bool:
        """Whether a drained worker has no requests left, and the router sends it none."""
        return self.has_no_requests and not self.routed_as

    @property
    def route_text(self) -> str:
        """Whether the router still sends a drained worker requests; empty if it does not."""
        if self.routed_as == Role.UNKNOWN:
            return "whether the router still sends it requests is not known"
        return "the router has not let it go" if self.routed_as else ""

    @property
    def left_text(self) -> str:
        """What is known about the remaining requests of a drained worker."""
        if self.has_no_requests:
            return "it has no request left"
        if self.state is WorkerState.STARTING:
            return "whether requests still run is known once it is ready"
        if self.unanswered:
            return "it does not tell whether requests still run"
        return self.remaining or "requests still run"

    @property
    def being_stopped(self) -> bool:
        """Whether it is ending because of a stop request and will not be restarted."""
        return self.state is WorkerState.DRAINING and not self.restarting


@dataclass(frozen=True, slots=True)
class DaemonView:
    """The daemon itself; `stopping`: it is ending, or handing its workers over to the next daemon.

    `waiting`: differences in the node file at the last reload that only the next daemon will apply;
    those about a worker begin with its name. `node_file` says that the file has changed since, has
    problems or is missing; empty if it is as applied. `unwritten` says why the journal cannot be
    written, so that the next daemon would not know what this one did; empty if it can.
    """

    version: str
    pid: int
    node: str
    run_dir: str
    uptime_seconds: float
    stopping: bool = False
    waiting: tuple[str, ...] = ()
    node_file: str = ""
    unwritten: str = ""


@dataclass(frozen=True, slots=True)
class MoveView:
    """The last move of a worker to another role; `step` is its `MoveStep`.

    `undone`: it is being rolled back, or was, for the reason `why`. `id` is the request's.
    """

    id: str
    worker: str
    from_role: str
    to_role: str
    step: str
    undone: bool = False
    why: str = ""

    @property
    def under_way(self) -> bool:
        """Whether a step follows; a step that a newer daemon names is one on the way."""
        return self.step not in (MoveStep.DONE, MoveStep.ROLLED_BACK, MoveStep.FAILED)


@dataclass(frozen=True, slots=True)
class RoleConstraints:
    """What decisions about a worker's role need besides the workers.

    `membership` is `live` if the node's router can add and remove engines while it runs, `fixed` if
    not, and empty without a router. `elsewhere` holds the roles of the engines on other nodes that
    the router knows. `misfits` gives the reasons why a worker cannot have a role, `strangers`
    describes processes on a worker's GPUs that belong to no worker. The `silent` workers neither
    answer nor work. `unwritten` says why the next daemon would not know of a change; empty if it
    would.
    """

    membership: str = ""
    elsewhere: frozenset[Role] = frozenset()
    misfits: Mapping[tuple[str, Role], tuple[str, ...]] = field(default_factory=dict)
    strangers: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    unwritten: str = ""


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """Everything that a decision needs; `move` is the last reassignment."""

    daemon: DaemonView
    workers: tuple[WorkerView, ...] = ()
    move: Reassignment | None = None
    constraints: RoleConstraints = RoleConstraints()

    def worker(self, name: str) -> WorkerView | None:
        """The worker of that name."""
        return next((worker for worker in self.workers if worker.worker == name), None)
