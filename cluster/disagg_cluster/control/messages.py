"""Requests to a daemon and its replies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_cluster.control.refusal import ControlRefusal
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class PauseWorkers:
    """Only observe a worker; None means all workers."""

    worker: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeWorkers:
    """Supervise a worker again; None means all workers."""

    worker: str | None = None


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Restart a worker; with `drain`, only after its running requests have ended.

    With `force` also one without which its model has no other of its role that serves.
    """

    worker: str
    drain: bool = True
    force: bool = False


@dataclass(frozen=True, slots=True)
class ReassignWorker:
    """Move a worker's GPUs to the other phase: it finishes its requests and then serves in `role`.

    With `dry_run` nothing is done; the reply says what would be. Its requests may take
    `drain_seconds` to end, by default the limit in the node file; after that it keeps its old role.
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
    """Explain why a worker is in its state."""

    worker: str


@dataclass(frozen=True, slots=True)
class RereadNodeFile:
    """Read the node file again and apply what has changed; with `dry_run`, only list the changes.

    With the `digest` from an earlier `dry_run` reply, only the changes shown then are applied. With
    `force` also one that leaves a model of the file without a role for some time.
    """

    dry_run: bool = False
    digest: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class RereadReport:
    """Differences in a node file: of `workers`, those `applied` and those `deferred`.

    `added` workers are started, `removed` ones are drained and stopped. `digest` identifies the
    whole set. `problems` are errors in the file; `refusal` says why nothing may be changed, with or
    without them.
    """

    workers: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    digest: str = ""
    refusal: ControlRefusal | None = None

    @property
    def explanation(self) -> tuple[str, ...]:
        """The differences, one per line, and what happens to each."""
        # Added and removed workers first: the end of a long list may be cut off.
        return (
            *(f"{each} ({STARTS})" for each in self.added),
            *(f"{each} ({ENDS})" for each in self.removed),
            *self.applied,
            *(f"{each} ({WAITS})" for each in self.deferred),
        )


STARTS, ENDS = "is started", "is drained and stopped"
WAITS = "waits for the next daemon"


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """Report the state of the daemon and its workers."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """Report the state, then every change until the daemon ends."""


LongVerb = RestartWorker | ReassignWorker | DrainWorker
"""Changes that take time; a node runs one of them at a time."""

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


def answer_seconds(verb: Verb) -> float:
    """How long a daemon may take to its first reply before it counts as unresponsive.

    A change that takes time gets its first reply at once and may then run for as long as it needs.
    """
    match verb:
        case RereadNodeFile():
            # Interpreters are probed for the engine package, each for up to 10 s.
            return 600.0
        case ExplainWorker() | DaemonStatus() | WatchStatus():
            return 10.0
        case _:
            return 30.0


def name_of(verb: Verb) -> str:
    """The name of a verb on the wire, in the log and in metrics."""
    return next(name for name, kind in VERBS.items() if isinstance(verb, kind))


def text_of(verb: Verb) -> str:
    """A verb as a command line."""
    match verb:
        case RestartWorker(worker, drain, force):
            return f"restart {worker}{'' if drain else ' --now'}{' --force' if force else ''}"
        case PauseWorkers(worker) | ResumeWorkers(worker):
            return f"{name_of(verb)} {worker or 'all workers'}"
        case ReassignWorker(worker, role, dry_run):
            return f"reassign {worker} --role {role}{' --dry-run' if dry_run else ''}"
        case DrainWorker(worker) | ExplainWorker(worker):
            return f"{name_of(verb)} {worker}"
        case RereadNodeFile(dry_run=dry_run, force=force):
            return f"reload{' --dry-run' if dry_run else ''}{' --force' if force else ''}"
        case DaemonStatus() | WatchStatus():
            return name_of(verb)


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One request; every repetition of an `id` is the same request.

    With `wait`, the final reply comes when the change is done, or after `deadline_seconds` at the
    latest; None uses the time limit of the change itself.
    """

    id: str
    verb: Verb
    wait: bool = True
    deadline_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A client as the transport identified it; `who` appears in the log."""

    who: str

    def __str__(self) -> str:
        return self.who


def local_caller(uid: int, pid: int) -> Caller:
    """A process of this host, identified by the kernel."""
    return Caller(f"uid {uid} (pid {pid})")


class ReplyOutcome(StrEnum):
    """The progress of a request.

    `progress`, `worker` (the status of one worker), `gone` (the last known status of a removed
    worker), `move` (the progress of a move) and `current` (everything up to now was sent) are
    followed by more replies. `accepted`: begun, without waiting for the end. `timeout`: the change
    goes on, the wait has ended. `invalid`: the request was not understood.
    """

    PROGRESS = "progress"
    WORKER = "worker"
    GONE = "gone"
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
        """Whether this is the last reply."""
        return self not in _FOLLOWED


_FOLLOWED = (
    ReplyOutcome.PROGRESS,
    ReplyOutcome.WORKER,
    ReplyOutcome.GONE,
    ReplyOutcome.MOVE,
    ReplyOutcome.CURRENT,
)


@dataclass(frozen=True, slots=True)
class ControlReply:
    """One reply: what happened, in words, and what to do if it went wrong.

    `worker`, `daemon` and `move` are parts of a status; `problems` lists everything wrong with a
    request; `reason` is the `RefusalReason` of a refusal. `explanation` lists, sentence by
    sentence, why a worker is in its state, or the differences in a node file, which `digest`
    identifies.
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
    reason: str = ""
    digest: str = ""


def reread_reply(request_id: str, report: RereadReport, *, dry_run: bool) -> ControlReply:
    """The reply to a reload request."""
    explanation, refusal = report.explanation, report.refusal
    if refusal is not None:
        why, way_out, reason = refusal.why, refusal.way_out, refusal.reason
        refused = ReplyOutcome.REFUSED
        return ControlReply(request_id, refused, why, way_out, report.problems, reason=reason)
    if report.problems:
        text = "nothing was changed"
        return ControlReply(request_id, ReplyOutcome.FAILED, text, problems=report.problems)
    way_out, names = "", ", ".join(report.workers)
    if names:
        text = f"{'would be ' if dry_run else ''}applied: {names}"
    elif explanation:
        text = "nothing in it can be applied to a running daemon"
    else:
        text = "the node file has no changes"
    if report.deferred:
        way_out = "restart the daemon to apply what waits"
    done = ReplyOutcome.DONE
    return ControlReply(
        request_id,
        done,
        text,
        way_out,
        explanation=explanation,
        digest=report.digest if dry_run else "",
    )
