"""What a daemon can be asked, and what it answers: requests, views of the node, replies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_cluster.lifecycle.state import WorkerState


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
class DaemonStatus:
    """Say how the daemon and its workers stand."""


Verb = PauseWorkers | ResumeWorkers | RestartWorker | DaemonStatus
VERBS: dict[str, type[Verb]] = {
    "pause": PauseWorkers,
    "resume": ResumeWorkers,
    "restart": RestartWorker,
    "status": DaemonStatus,
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
        case DaemonStatus():
            return "status"


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
    given up, a worker in back-off is started.
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
class NodeOverview:
    """Everything that a decision looks at."""

    daemon: DaemonView
    workers: tuple[WorkerView, ...] = ()

    def worker(self, name: str) -> WorkerView | None:
        """The worker of that name."""
        return next((worker for worker in self.workers if worker.worker == name), None)


class ReplyOutcome(StrEnum):
    """How far a request has come.

    `progress` and `worker` (one worker's status) are followed by others. `accepted`: begun, and
    not waited for. `timeout`: it goes on, and is no longer waited for. `invalid`: not understood.
    """

    PROGRESS = "progress"
    WORKER = "worker"
    DONE = "done"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INVALID = "invalid"

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self not in (ReplyOutcome.PROGRESS, ReplyOutcome.WORKER)


@dataclass(frozen=True, slots=True)
class ControlReply:
    """One answer: what happened, in words, and the way out where it did not go well.

    `worker` and `daemon` are parts of a status; `problems` is all that is wrong with a request.
    """

    id: str
    outcome: ReplyOutcome
    text: str = ""
    way_out: str = ""
    problems: tuple[str, ...] = ()
    worker: WorkerView | None = None
    daemon: DaemonView | None = None
