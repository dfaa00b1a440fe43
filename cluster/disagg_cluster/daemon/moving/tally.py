"""Reports moves: a log line per step, counts, and the durations of the last move."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from disagg_cluster.control.explanation import move_stage
from disagg_cluster.lifecycle.reassignment.progress import MoveStep, Reassignment
from disagg_exporter.model import ReassignStatus


class MoveTally:
    """The moves of a node's workers since the daemon started.

    Args:
        workers: The workers that can be moved.
        log: Logs each step.
    """

    def __init__(self, workers: Iterable[str], log: logging.Logger) -> None:
        self._statuses = {name: ReassignStatus(name) for name in workers}
        self._log = log

    def keep(self, workers: Iterable[str]) -> None:
        """Report on these workers only from now on."""
        self._statuses = {name: self._statuses.get(name, ReassignStatus(name)) for name in workers}

    def statuses(self) -> tuple[ReassignStatus, ...]:
        """The metrics by worker."""
        return tuple(self._statuses.values())

    def record(self, before: Reassignment | None, move: Reassignment) -> None:
        """Record a change from one state of a move to the next."""
        same = before is not None and before.id == move.id
        if before is not None and same and _place(before) == _place(move):
            return
        status = self._statuses[move.worker]
        status = replace(
            status,
            role=move.to_role.value,
            drain_seconds=move.drain_seconds,
            downtime_seconds=move.downtime_seconds,
            effect_seconds=move.effect_seconds,
        )
        if before is not None and same and move.undone and not before.undone:
            status = replace(status, unproven=status.unproven + (before.step is MoveStep.PROVING))
            self._log.warning("%s: goes back to %s: %s", move.worker, move.from_role, move.why)
        if move.step.final:
            count = status.outcomes.get(move.step.value, 0) + 1
            status = replace(status, outcomes={**status.outcomes, move.step.value: count})
            self._log_end(move)
        else:
            self._log.info("%s: %s", move.worker, move_stage(move))
        self._statuses[move.worker] = status

    def _log_end(self, move: Reassignment) -> None:
        level = logging.INFO if move.step is MoveStep.DONE else logging.WARNING
        why = f": {move.why}" if move.why else ""
        message = "%s: reassignment from %s to %s: %s%s (request %s)"
        parts = move.worker, move.from_role, move.to_role, move.step, why, move.id
        self._log.log(level, message, *parts)


def _place(move: Reassignment) -> tuple[MoveStep, bool]:
    return move.step, move.undone
