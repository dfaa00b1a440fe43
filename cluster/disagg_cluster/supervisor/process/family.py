"""Who belongs to a worker though he left its session: a helper that called setsid, say."""

from __future__ import annotations

from collections.abc import Callable, Collection

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import mark_of
from disagg_cluster.supervisor.process.own_processes import OwnProcesses

ProcessId = tuple[int, int]
"""A pid and the clock tick at which it started: together they are never used again."""


class Family:
    """The processes of one worker that are outside the session of its leader.

    Known by the mark that every process of a worker inherits, by having been seen among the
    leader's descendants, or by the worker's control group.

    Args:
        leader: The leader's pid, which is the number of its session.
        start_ticks: When the leader started; its family is no older.
        mark: What its processes have inherited (`process_traits`); none is looked for if empty.

    Attributes:
        descendants: Those that were seen below the leader at any time.
        in_group: The pids in its control group.
        kill_group: Ends all in its control group.
        look: Sees all processes of ours; those of several workers may share one look.
    """

    def __init__(self, leader: int, start_ticks: int, mark: str) -> None:
        self._leader = leader
        self._start_ticks = start_ticks
        self._mark = mark
        self.descendants: Callable[[], Collection[ProcessId]] = frozenset
        self.in_group: Callable[[], Collection[int]] = frozenset
        self.kill_group: Callable[[], None] = lambda: None
        self.look: Callable[[], OwnProcesses] = OwnProcesses

    def escaped(self) -> tuple[int, ...]:
        """The living that are in other sessions than the leader's, in no order."""
        descendants, group = self.descendants(), self.in_group()
        if not (self._mark or descendants or group):
            return ()
        seen = self.look()
        return tuple(
            pid
            for pid, session, ticks in seen.living
            if session != self._leader
            and self._is_kin((pid, ticks), descendants, group, seen.mark_of)
        )

    def includes(self, pid: int) -> bool:
        """Whether a process, now and by this number, belongs to it."""
        if procfs.session_of(pid) == self._leader:
            return True
        ticks = procfs.start_ticks(pid)
        return ticks is not None and self._is_kin(
            (pid, ticks), self.descendants(), self.in_group(), mark_of
        )

    def _is_kin(
        self,
        process: ProcessId,
        descendants: Collection[ProcessId],
        group: Collection[int],
        mark_of: Callable[[int], str],
    ) -> bool:
        pid, ticks = process
        if ticks < self._start_ticks or pid == self._leader:
            return False
        if process in descendants or pid in group:
            return True
        return self._mark != "" and mark_of(pid) == self._mark
