"""What a daemon can be asked, and what it answers: requests and replies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_cluster.control.refusal import ControlRefusal
from disagg_cluster.control.views import DaemonView, MoveView, WorkerView
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
    """Read the node file again and take in what it says otherwise; with `dry_run`, only say it.

    With the `digest` that was answered to a `dry_run`, only what was shown then is taken in.
    """

    dry_run: bool = False
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class RereadReport:
    """What a node file says otherwise: of `workers`, `taken` in, and what `waits`; or problems.

    `come` are workers that are new and started, `gone` those that are drained and stopped. `digest`
    stands for all of it. `refusal` is why nothing may be changed, beside or in place of `problems`.
    """

    workers: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    come: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    digest: str = ""
    refusal: ControlRefusal | None = None

    @property
    def explanation(self) -> tuple[str, ...]:
        """What is otherwise, line by line, and what becomes of it."""
        # Who comes and goes at first: where there is much to say its end may be left out.
        return (
            *(f"{each} ({STARTS})" for each in self.come),
            *(f"{each} ({ENDS})" for each in self.gone),
            *self.taken,
            *(f"{each} ({WAITS})" for each in self.waits),
        )


STARTS, ENDS = "is started", "is drained and stopped"
WAITS = "waits for the next daemon"


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


def answer_seconds(verb: Verb) -> float:
    """How long a daemon may take to its first answer; beyond that it is not well.

    A change that takes time is told of at once, and then for as long as it lasts.
    """
    match verb:
        case RereadNodeFile():
            # Interpreters are asked whether they have the engine, each for 10 s at most.
            return 600.0
        case ExplainWorker() | DaemonStatus() | WatchStatus():
            return 10.0
        case _:
            return 30.0


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
        case RereadNodeFile(dry_run=dry_run):
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
    """Who asks, by the word of the transport: `who` is what the log says of them."""

    who: str

    def __str__(self) -> str:
        return self.who


def local_caller(uid: int, pid: int) -> Caller:
    """A user and a process of this host, by the kernel's word."""
    return Caller(f"uid {uid} (pid {pid})")


class ReplyOutcome(StrEnum):
    """How far a request has come.

    `progress`, `worker` (one worker's status), `gone` (one that is launched no more, as it was last
    seen), `move` (how far one has come) and `current` (all of it was told, up to now) are followed
    by others. `accepted`: begun, and not waited for.
    `timeout`: it goes on, and is no longer waited for. `invalid`: not understood.
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
        """Whether nothing follows."""
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
    """One answer: what happened, in words, and the way out where it did not go well.

    `worker`, `daemon` and `move` are parts of a status; `problems` is all that is wrong with a
    request; `reason` is one of `RefusalReason` where it was refused. `explanation` says, sentence
    by sentence, why a worker is in its state, or what a node file says otherwise: all of that is
    what `digest` stands for.
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
    """What is answered to who asked for the node file to be read again."""
    told, refusal = report.explanation, report.refusal
    if refusal is not None:
        why, way_out, reason = refusal.why, refusal.way_out, refusal.reason
        refused = ReplyOutcome.REFUSED
        return ControlReply(request_id, refused, why, way_out, report.problems, reason=reason)
    if report.problems:
        text = "nothing was changed"
        return ControlReply(request_id, ReplyOutcome.FAILED, text, problems=report.problems)
    way_out, names = "", ", ".join(report.workers)
    if names:
        text = f"{'would be ' if dry_run else ''}taken in: {names}"
    elif told:
        text = "a running daemon takes in nothing of it"
    else:
        text = "the node file says what it said before"
    if report.waits:
        way_out = "end the daemon and start it anew to take in what waits"
    done = ReplyOutcome.DONE
    return ControlReply(
        request_id, done, text, way_out, explanation=told, digest=report.digest if dry_run else ""
    )
