"""The rest of the daemon's view of supervision, also before it begins; reports of changes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from disagg_cluster.lifecycle.state import WorkerIdentity, WorkerState
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import OnChange, WorkerSpec
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus, WorkerStatus

COLLECTOR = "worker_changes"


class SupervisionView:
    """Answers for `supervisor` once that is set; before, from the node file.

    Args:
        specs: The workers by name, without the router.
    """

    def __init__(self, specs: Mapping[str, WorkerSpec]) -> None:
        self._specs = specs
        self.supervisor: Supervisor | None = None

    def tag(self, worker: str) -> WorkerIdentity:
        """The identity with which a worker's present process was started, or would be."""
        return self._specs[worker].tag if self.supervisor is None else self.supervisor.tag(worker)

    def up(self, worker: str) -> bool | None:
        """Whether its last probe found it healthy; None if unknown."""
        return None if self.supervisor is None else self.supervisor.up(worker)

    def served(self, worker: str) -> bool:
        """Whether its present process was ready before."""
        return self.supervisor is not None and self.supervisor.life(worker).served

    def command_digest(self, worker: str) -> str:
        """A fingerprint of its command; empty while there is none."""
        return "" if self.supervisor is None else self.supervisor.command_digest(worker)

    @property
    def unwatched_seconds(self) -> float:
        """How long the least recently checked worker has gone unchecked."""
        return 0.0 if self.supervisor is None else self.supervisor.unwatched_seconds

    def statuses(self, drained: Collection[str]) -> tuple[WorkerStatus, ...]:
        """The status of each worker, as the metrics page shows it; some are `drained` by hand."""
        found = () if self.supervisor is None else self.supervisor.statuses()
        return tuple(replace(each, drained=each.worker in drained) for each in found)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of supervision itself."""
        return () if self.supervisor is None else self.supervisor.collectors()

    def logs(self) -> Mapping[str, Path]:
        """The logs of all workers; none before there is a supervisor."""
        return {} if self.supervisor is None else self.supervisor.logs()

    def writers(self) -> Mapping[str, int]:
        """The pid that writes each log now."""
        return {} if self.supervisor is None else self.supervisor.writers()

    def log_was_cut(self, worker: str) -> None:
        """Record that a worker's log was rotated."""
        if self.supervisor is not None:
            self.supervisor.log_was_cut(worker)

    def record(self) -> None:
        """Write the state of all workers to the journal."""
        if self.supervisor is not None:
            self.supervisor.record()

    def keep_up(self) -> None:
        """Retry a journal that could not be written; find processes that have escaped."""
        if self.supervisor is not None:
            self.supervisor.record()
            self.supervisor.scan_descendants()


class ChangeReports:
    """Keeps the last change of each worker until it has been reported.

    Args:
        report: Receives a change, as an `OnChange` does; it may fail.
        log: Logs when reports begin to fail, and when they succeed again.
    """

    def __init__(self, report: OnChange, log: logging.Logger) -> None:
        self._report = report
        self._health = CollectorHealth(COLLECTOR, log)
        self._waiting: dict[str, tuple[WorkerState, WorkerState, int | None, str]] = {}

    def report(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        """Report a change (an `OnChange`)."""
        self._waiting[name] = (old, new, pid, why)
        with self._health.round():
            self._pass_on(name)

    def try_again(self) -> None:
        """Report what could not be reported before."""
        if self._waiting:
            with self._health.round():
                for name in tuple(self._waiting):
                    self._pass_on(name)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The collector `worker_changes`, once a report has failed."""
        return (self._health.status(),) if self._health.has_failed else ()

    def _pass_on(self, name: str) -> None:
        self._report(name, *self._waiting[name])
        del self._waiting[name]
