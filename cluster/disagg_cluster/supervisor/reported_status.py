"""What is reported of a worker: state and deadlines, cause of its crash, last log lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.host.worker_logs import last_lines
from disagg_cluster.lifecycle.deadlines import PlannedStart, due_ns
from disagg_cluster.lifecycle.state import Lifecycle, WorkerState, to_ns
from disagg_exporter.model import WorkerStatus

_SHOWN_AFTER_A_CRASH = 5
_EVERY_NS = to_ns(2.0)


class ReportedStatus:
    """Builds the status of one worker, and remembers the cause of its last crash.

    Args:
        worker: Its name.
        log_path: Its log.
        clock_ns: CLOCK_MONOTONIC.
        wall: Unix seconds.
    """

    def __init__(
        self,
        worker: str,
        log_path: Path,
        clock_ns: Callable[[], int],
        wall: Callable[[], float],
    ) -> None:
        self._worker = worker
        self._log_path = log_path
        self._clock_ns = clock_ns
        self._wall = wall
        self._planned_start = PlannedStart(clock_ns, wall)
        self._cause = ""
        self._at_crash: tuple[str, ...] = ()
        self._at_start: tuple[str, ...] = ()
        self._read_ns: int | None = None

    @property
    def cause(self) -> str:
        """Why it crashed last; empty if it has not."""
        return self._cause

    def crashed(self, cause: str, lines: tuple[str, ...]) -> None:
        """Record why a process has just crashed, and the end of its log."""
        self._cause = cause
        self._at_crash = lines[-_SHOWN_AFTER_A_CRASH:]

    def adopted(self, life: Lifecycle, log_start_bytes: int) -> str:
        """Continue a life of the previous daemon; return the cause of its state, if known."""
        if life.state not in (WorkerState.BACKOFF, WorkerState.FAILED):
            return ""
        # The journal does not hold the last lines; the log does.
        lines = last_lines(self._log_path, _SHOWN_AFTER_A_CRASH, log_start_bytes)
        self.crashed("it crashed under the daemon before", lines)
        return self._cause

    def status(self, life: Lifecycle, policy: RestartPolicy, log_start_bytes: int) -> WorkerStatus:
        """Return its present status, without when its process started.

        Args:
            life: Its lifecycle.
            policy: Its deadlines.
            log_start_bytes: Where in its log its present process began.
        """
        now_ns, now_seconds = self._clock_ns(), self._wall()
        due = due_ns(life, policy)
        given_up = life.state in (WorkerState.STARTING, WorkerState.DRAINING)
        return WorkerStatus(
            worker=self._worker,
            state=life.state,
            restarts=life.restarts,
            start_timestamp_seconds=None,
            paused=life.paused_ns is not None,
            next_start_timestamp_seconds=self._planned_start.seconds(life, policy),
            since_timestamp_seconds=now_seconds - (now_ns - life.since_ns) / 1e9,
            deadline_timestamp_seconds=(
                now_seconds + (due - now_ns) / 1e9 if due is not None and given_up else None
            ),
            cause=self._cause,
            last_lines=self._lines(life.state, log_start_bytes, now_ns),
        )

    def _lines(self, state: WorkerState, since_bytes: int, now_ns: int) -> tuple[str, ...]:
        """Return the lines to show with a state; a log is read every two seconds at most."""
        if state is WorkerState.STARTING:
            if self._read_ns is None or now_ns - self._read_ns >= _EVERY_NS:
                self._read_ns = now_ns
                self._at_start = last_lines(self._log_path, 1, since_bytes)
            return self._at_start
        self._read_ns, self._at_start = None, ()
        return self._at_crash if state in (WorkerState.BACKOFF, WorkerState.FAILED) else ()
