"""What a request is answered with: any number of steps on the way, then one outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from disagg_cluster.control.views import DaemonView, WorkerView


class Outcome(StrEnum):
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
        return self not in (Outcome.PROGRESS, Outcome.WORKER)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: what happened, in words, and the way out where it did not go well.

    `worker` and `daemon` are parts of a status; `problems` is all that is wrong with a request.
    """

    id: str
    outcome: Outcome
    text: str = ""
    way_out: str = ""
    problems: tuple[str, ...] = ()
    worker: WorkerView | None = None
    daemon: DaemonView | None = None
