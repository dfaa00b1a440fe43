"""What a daemon can be asked by hand, and by whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """Only observe a worker, or all of them if None."""

    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Supervise a worker again, or all of them if None."""

    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a worker anew; with `drain`, only once its running requests have ended."""

    worker: str
    drain: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """Say how the daemon and its workers stand."""


Verb = Pause | Resume | Restart | Status
VERBS: dict[str, type[Pause] | type[Resume] | type[Restart] | type[Status]] = {
    "pause": Pause,
    "resume": Resume,
    "restart": Restart,
    "status": Status,
}


def name_of(verb: Verb) -> str:
    """By which name a verb goes on the wire, in the log and on the metrics page."""
    return next(name for name, kind in VERBS.items() if isinstance(verb, kind))


def text_of(verb: Verb) -> str:
    """A verb as a person would write it."""
    match verb:
        case Restart(worker, drain):
            return f"restart {worker}" if drain else f"restart {worker} --now"
        case Pause(worker) | Resume(worker):
            return f"{name_of(verb)} {worker or 'all workers'}"
        case Status():
            return "status"


@dataclass(frozen=True, slots=True)
class Request:
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
