"""What a daemon can be asked, and what it answers: requests, views of the node, replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_cluster.lifecycle.reassignment.progress import Reassignment
from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class PauseWorkers:
    """Only observe a worker, or all of them if None."""

    worker: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeWorkers:
    """Supervise a worker again, or all of them if None."""

    worker: str | None = None


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Start a worker anew; with `drain`, only once its running requests have ended."""

    worker: str
    drain: bool = True


@dataclass(frozen=True, slots=True)
class ReassignWorker:
    """Give a worker's GPUs to the other phase: it ends its requests and serves in `role`.

    With `dry_run` nothing is done, and what would be is said. Its requests may take
    `drain_seconds` to end, by default what the node file allows; then it goes on in its old role.
    """

    worker: str
    role: Role
    dry_run: bool = False
    drain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Send a worker no new requests until it is resumed; done when it has none left."""

    worker: str


@dataclass(frozen=True, slots=True)
class ExplainWorker:
    """Say in words why a worker is in its state."""

    worker: str


@dataclass(frozen=True, slots=True)
class RereadNodeFile:
    """Read the node file again and take in what it says otherwise; with `dry_run`, only say it."""

    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RereadReport:
    """What a node file says otherwise: of `workers`, `taken` in, and what `waits`; or problems."""

    workers: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """Say how the daemon and its workers stand."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """Say how they stand, and from then on what changes, until the daemon ends."""


LongVerb = RestartWorker | ReassignWorker | DrainWorker
"""What takes time: one at a time on a node."""

ChangeVerb = PauseWorkers | ResumeWorkers | LongVerb
Verb = ChangeVerb | ExplainWorker | RereadNodeFile | DaemonStatus | WatchStatus
VERBS: dict[str, type[Verb]] = {
    "pause": PauseWorkers,
    "resume": ResumeWorkers,
    "restart": RestartWorker,
    "reassign": ReassignWorker,
    "drain": DrainWorker,
    "explain": ExplainWorker,
    "reload": RereadNodeFile,
    "status": DaemonStatus,
    "watch": WatchStatus,
}


def name_of(verb: Verb) -> str:
    """By which name a verb goes on the wire, in the log and on the metrics page."""
    return next(name for name, kind in VERBS.items() if isinstance(verb, kind))


def text_of(verb: Verb) -> str:
    """A verb as a person would write it."""
    match verb:
        case RestartWorker(worker, drain):
            return f"restart {worker}" if drain else f"restart {worker} --now"
        case PauseWorkers(worker) | ResumeWorkers(worker):
            return f"{name_of(verb)} {worker or 'all workers'}"
        case ReassignWorker(worker, role, dry_run):
            return f"reassign {worker} --role {role}{' --dry-run' if dry_run else ''}"
        case DrainWorker(worker) | ExplainWorker(worker):
            return f"{name_of(verb)} {worker}"
        case RereadNodeFile(dry_run):
            return f"reload{' --dry-run' if dry_run else ''}"
        case DaemonStatus() | WatchStatus():
            return name_of(verb)


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One request: the same `id` asks for the same thing, however often it comes.

    With `wait`, the answer comes when the change is done, and after `deadline_seconds` at the
    latest; None leaves the deadline to what the change may take.
    """

    id: str
    verb: Verb
    wait: bool = True
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by the word of the transport: a user id and a process of this host."""

    uid: int
    pid: int

    def __str__(self) -> str:
        return f"uid {self.uid} (pid {self.pid})"


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


class ReplyOutcome(StrEnum):
    """How far a request has come.

    `progress`, `worker` (one worker's status), `move` (how far one has come) and `current` (all of
    it was told, up to now) are followed by others. `accepted`: begun, and not waited for.
    `timeout`: it goes on, and is no longer waited for. `invalid`: not understood.
    """

    PROGRESS = "progress"
    WORKER = "worker"
    MOVE = "move"
    CURRENT = "current"
    DONE = "done"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INVALID = "invalid"

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self not in _FOLLOWED


_FOLLOWED = (ReplyOutcome.PROGRESS, ReplyOutcome.WORKER, ReplyOutcome.MOVE, ReplyOutcome.CURRENT)


@dataclass(frozen=True, slots=True)
class ControlReply:
    """One answer: what happened, in words, and the way out where it did not go well.

    `worker`, `daemon` and `move` are parts of a status; `problems` is all that is wrong with a
    request; `explanation` says, sentence by sentence, why a worker is in its state, or what a node
    file says otherwise.
    """

    id: str
    outcome: ReplyOutcome
    text: str = ""
    way_out: str = ""
    problems: tuple[str, ...] = ()
    worker: WorkerView | None = None
    daemon: DaemonView | None = None
    explanation: tuple[str, ...] = ()
    move: MoveView | None = None
