"""Reports the changes of workers to those they concern; supervision goes on whatever they do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from disagg_cluster.lifecycle.state import WorkerState
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus

COLLECTOR = "worker_changes"

Report = Callable[[str, WorkerState, WorkerState, int | None, str], None]


class ChangeReports:
    """Keeps the last change of each worker until it was reported.

    Args:
        report: Takes a change, as an `OnChange` does; it may fail.
        log: Told when reports begin to fail, and when they succeed again.
    """

    def __init__(self, report: Report, log: logging.Logger) -> None:
        self._report = report
        self._health = CollectorHealth(COLLECTOR, log)
        self._waiting: dict[str, tuple[WorkerState, WorkerState, int | None, str]] = {}

    def take(
        self, name: str, old: WorkerState, new: WorkerState, pid: int | None, why: str
    ) -> None:
        """Report a change (an `OnChange`)."""
        self._waiting[name] = (old, new, pid, why)
        with self._health.round():
            self._pass_on(name)

    def try_again(self) -> None:
        """Report what could not be reported yet."""
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
