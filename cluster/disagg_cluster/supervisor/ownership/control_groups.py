"""The control groups of all workers, and the limits that each is to keep to."""

from __future__ import annotations

import logging
from pathlib import Path

from disagg_cluster.config.worker import WorkerLimits
from disagg_cluster.supervisor.ownership.control_group import ControlGroup, group_of
from disagg_cluster.supervisor.process.child_process import Child
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus


class ControlGroups:
    """Gives each worker's process its group and limits; a worker runs also without.

    Args:
        root: Where groups are made; None if they cannot be had.
        why: Why they cannot.
        log: Told once of each limit that cannot be had.
    """

    def __init__(self, root: Path | None, why: str, log: logging.Logger) -> None:
        self._root = root
        self._why = why
        self._log = log
        self._groups: dict[str, ControlGroup] = {}
        self._health: dict[str, CollectorHealth] = {}

    def prepare(self, worker: str, log_path: Path, limits: WorkerLimits) -> None:
        """Make the group of a worker that is about to be started, with its limits."""
        problems: tuple[str, ...] = ()
        if self._root is None:
            problems = (self._why,) if (limits.memory or limits.tasks) else ()
        else:
            group = self._groups[worker] = ControlGroup(self._root, log_path, worker)
            # What was left there has been ended before, or else the group is used on.
            group.remove()
            problems = group.make(limits)
        self._tell(worker, limits, problems)

    def enter(self, worker: str, child: Child, limits: WorkerLimits) -> None:
        """Put a process just started into the group of its worker."""
        problems = []
        group = self._groups.get(worker)
        if group is not None and (problem := group.add(child.pid)):
            problems.append(problem)
        if limits.oom_score_adjust is not None:
            try:
                score = Path(f"/proc/{child.pid}/oom_score_adj")
                score.write_text(str(limits.oom_score_adjust))
            except OSError as error:
                problems.append(f"cannot set oom_score_adjust: {error.strerror}")
        if problems:
            self._tell(worker, limits, tuple(problems))

    def attach(self, worker: str, log_path: Path, child: Child) -> None:
        """Have a process, adopted perhaps, know who is in the group of its worker.

        An adopted one may be in a group that a daemon made elsewhere.
        """
        group = self._groups.get(worker) or self._group_of(worker, log_path, child)
        if group is not None:
            self._groups[worker] = group
            child.family.in_group = group.pids
            child.family.kill_group = group.kill

    def leave(self, worker: str) -> None:
        """Remove the group of a worker of which nothing is left."""
        if worker in self._groups:
            self._groups[worker].remove()

    def verdict(self, worker: str, limits: WorkerLimits) -> str:
        """Why a worker may have died, if its limit was the reason; empty otherwise."""
        group = self._groups.get(worker)
        if group is None or limits.memory is None or not group.was_out_of_memory():
            return ""
        return f"it took more memory than its limit of {limits.memory} bytes (limits.memory)"

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return `limits:<worker>` of those with limits: failed while one is not kept to."""
        return tuple(health.status() for health in self._health.values())

    def _group_of(self, worker: str, log_path: Path, child: Child) -> ControlGroup | None:
        within = group_of(child.pid)
        if within is not None:
            group = ControlGroup(within.parent, log_path, worker)
            if group.path == within:
                return group
        return None if self._root is None else ControlGroup(self._root, log_path, worker)

    def _tell(self, worker: str, limits: WorkerLimits, problems: tuple[str, ...]) -> None:
        if not (limits.model_fields_set or problems):
            return
        health = self._health.setdefault(
            worker,
            CollectorHealth(f"limits:{worker}", self._log, failing="runs without all its limits: "),
        )
        with health.round() as told:
            told.update({str(place): problem for place, problem in enumerate(problems)})
