"""What is said of a worker's failure to somebody outside: which kind, why, its last words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from disagg_cluster.lifecycle.state import Event, Exited, Lifecycle, Probed, WorkerState

VERSION = 1
_MOST_TEXT = 2000
_MOST_LINE = 1000


class FailureKind(StrEnum):
    """A process ended unasked or came not up; was killed because it hung; was given up; is back."""

    CRASHED = "crashed"
    HUNG = "hung"
    FAILED = "failed"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a worker, or the end of one.

    `exit_code` is minus the signal that ended it, None where it is not known or did not exit; `pid`
    is that of the process that failed. `log_lines` are the last of its log.
    """

    event: FailureKind
    worker: str
    role: str
    state: str
    cause: str
    exit_code: int | None
    pid: int | None
    restarts: int
    timestamp_seconds: float
    log_path: str
    log_lines: tuple[str, ...] = ()


OnFailure = Callable[[Failure], None]
"""Receives each failure inside the loop; it must neither wait nor raise."""


def has_crashed(old: Lifecycle, new: Lifecycle) -> bool:
    """Whether a crash was counted from one life to the next."""
    return new.crashes_ns[-1:] not in ((), old.crashes_ns[-1:])


def failure_kind(old: Lifecycle, new: Lifecycle, event: Event) -> FailureKind | None:
    """Which failure it is that led from one life to the next; None if it is none."""
    if not has_crashed(old, new):
        return None
    if new.state is WorkerState.FAILED:
        return FailureKind.FAILED
    return FailureKind.HUNG if isinstance(event, Probed) else FailureKind.CRASHED


def exit_code_of(event: Event) -> int | None:
    """How the process ended, if that is what was event."""
    return event.code if isinstance(event, Exited) else None


@dataclass(slots=True)
class FailureReports:
    """Makes failures, and their ends, of what happens to one worker.

    Args:
        worker, role: Whose.
        log_path: Its log.
        report: Receives each.
        wall: Unix seconds.
    """

    worker: str
    role: str
    log_path: Path
    report: OnFailure
    wall: Callable[[], float] = time.time
    _broken: bool = field(default=False, init=False)

    def take(
        self,
        old: Lifecycle,
        new: Lifecycle,
        event: Event,
        cause: str,
        pid: int | None,
        lines: tuple[str, ...],
    ) -> None:
        """Take what one event has led to.

        Args:
            old: The life before it.
            new: The life after it.
            event: The event.
            cause: What the log says of it.
            pid: The process that it happened to.
            lines: The last lines of its log.
        """
        kind = failure_kind(old, new, event)
        if kind is None and self._broken and _is_back(old, new):
            kind = FailureKind.RECOVERED
        if kind is None:
            return
        self._broken = kind is not FailureKind.RECOVERED
        self.report(
            Failure(
                event=kind,
                worker=self.worker,
                role=self.role,
                state=new.state,
                cause=cause,
                exit_code=exit_code_of(event),
                pid=pid,
                restarts=new.restarts,
                timestamp_seconds=self.wall(),
                log_path=str(self.log_path),
                log_lines=lines,
            )
        )


def _is_back(old: Lifecycle, new: Lifecycle) -> bool:
    return new.state is WorkerState.READY and old.state is not WorkerState.READY


def payload(failure: Failure, node: str, cluster: str) -> bytes:
    """A failure as a line of JSON, of bounded length."""
    fields = {"version": VERSION, "node": node, "cluster": cluster} | asdict(failure)
    fields["cause"] = failure.cause[:_MOST_TEXT]
    fields["log_lines"] = [line[:_MOST_LINE] for line in failure.log_lines]
    return json.dumps(fields).encode() + b"\n"
