"""Reports of a worker's failures to the outside: their kind, cause and last log lines."""

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
    """A process ended unasked or did not start; was killed as hung; was given up; has recovered."""

    CRASHED = "crashed"
    HUNG = "hung"
    FAILED = "failed"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a worker, or its recovery.

    `exit_code` is minus the signal that ended the process, None if unknown or if it did not exit;
    `pid` is that of the process that failed. `log_lines` are the last of its log.
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
    """Whether a crash was counted between one life and the next."""
    return new.crashes_ns[-1:] not in ((), old.crashes_ns[-1:])


def failure_kind(old: Lifecycle, new: Lifecycle, event: Event) -> FailureKind | None:
    """Return the kind of failure between one life and the next; None if there was none."""
    if not has_crashed(old, new):
        return None
    if new.state is WorkerState.FAILED:
        return FailureKind.FAILED
    return FailureKind.HUNG if isinstance(event, Probed) else FailureKind.CRASHED


def exit_code_of(event: Event) -> int | None:
    """Return how the process ended, if that is what happened."""
    return event.code if isinstance(event, Exited) else None


@dataclass(slots=True)
class FailureReports:
    """Derives failures and recoveries from what happens to one worker.

    Args:
        worker, role: The worker's name and role.
        log_path: Its log.
        report: Receives each failure.
        wall: Unix seconds.
    """

    worker: str
    role: str
    log_path: Path
    report: OnFailure
    wall: Callable[[], float] = time.time
    _broken: bool = field(default=False, init=False)

    def handle(
        self,
        old: Lifecycle,
        new: Lifecycle,
        event: Event,
        cause: str,
        pid: int | None,
        lines: tuple[str, ...],
    ) -> None:
        """Report the failure or recovery, if any, that one event has led to.

        Args:
            old: The lifecycle before it.
            new: The lifecycle after it.
            event: The event.
            cause: Its description in the log.
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
    """Return a failure as a line of JSON, of bounded length."""
    fields = {"version": VERSION, "node": node, "cluster": cluster} | asdict(failure)
    fields["cause"] = failure.cause[:_MOST_TEXT]
    fields["log_lines"] = [line[:_MOST_LINE] for line in failure.log_lines]
    return json.dumps(fields).encode() + b"\n"
