"""The processes of a worker that left its session, such as a helper that called setsid."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_table import below
from disagg_cluster.host.processes.process_traits import mark_of, own_processes

ProcessId = tuple[int, int]
"""A pid and the clock tick at which it started: the pair is never used again."""


class OwnProcess(NamedTuple):
    """A living process of our own user: its pid, its session and the clock tick of its start."""

    pid: int
    session: int
    start_ticks: int


class OwnProcesses:
    """Those that lived when this was made; each one's mark is read once, on demand.

    Raises:
        OSError: /proc cannot be read.
    """

    def __init__(self) -> None:
        self.living = tuple(_living())
        self._marks: dict[int, str] = {}

    def mark_of(self, pid: int) -> str:
        """The mark of one of them (`process_traits`); empty without one."""
        mark = self._marks.get(pid)
        if mark is None:
            mark = self._marks[pid] = mark_of(pid)
        return mark


def _living() -> list[OwnProcess]:
    found = []
    for pid in own_processes():
        session = procfs.session_of(pid)
        # Session 0 is the kernel's, or one that began outside our container.
        ticks = procfs.living_since_ticks(pid) if session else None
        if session and ticks is not None:
            found.append(OwnProcess(pid, session, ticks))
    return found


class SharedScan:
    """One scan of all processes for all callers in one turn of the running loop.

    A scan takes some 0.1 ms for each process, and workers often end together. It is made in the
    turn in which it is requested: after the deaths that the loop reports in this turn, so that none
    of them can have left a process that the scan does not show. A caller that learns of a death in
    another way requests a new one (`forget`).

    Args:
        scan: Scans all processes.
    """

    def __init__(self, scan: Callable[[], OwnProcesses] = OwnProcesses) -> None:
        self._scan = scan
        self._seen: OwnProcesses | None = None

    def processes(self) -> OwnProcesses:
        """Return the scan of this turn."""
        if self._seen is None:
            seen = self._scan()
            # Called before anything that the loop reports in the next turn.
            asyncio.get_running_loop().call_soon(self.forget)
            self._seen = seen
        return self._seen

    def forget(self) -> None:
        """Scan anew at the next request."""
        self._seen = None


class ProcessFamily:
    """The processes of one worker that are outside the session of its leader.

    They are recognised by the mark that every process of a worker inherits, by having been observed
    among the leader's descendants, or by the worker's control group.

    Args:
        leader: The leader's pid, which is the number of its session.
        start_ticks: When the leader started; its family is no older.
        mark: What its processes have inherited (`process_traits`); not looked for if empty.

    Attributes:
        descendants: Those observed below the leader at any time.
        in_group: The pids in its control group.
        kill_group: Ends all in its control group.
        own_processes: Scans all processes of ours; several workers may share one scan.
    """

    def __init__(self, leader: int, start_ticks: int, mark: str) -> None:
        self._leader = leader
        self._start_ticks = start_ticks
        self._mark = mark
        self.descendants: Callable[[], Collection[ProcessId]] = frozenset
        self.in_group: Callable[[], Collection[int]] = frozenset
        self.kill_group: Callable[[], None] = lambda: None
        self.own_processes: Callable[[], OwnProcesses] = OwnProcesses

    def escaped(self) -> tuple[int, ...]:
        """Return the living that are in other sessions than the leader's, in no order."""
        descendants, group = self.descendants(), self.in_group()
        if not (self._mark or descendants or group):
            return ()
        seen = self.own_processes()
        return tuple(
            pid
            for pid, session, ticks in seen.living
            if session != self._leader
            and self._is_kin((pid, ticks), descendants, group, seen.mark_of)
        )

    def includes(self, pid: int) -> bool:
        """Whether the process that now has this pid belongs to it."""
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


class Descendants:
    """The descendants observed below each leader, from scan to scan; also reaps orphans.

    Args:
        is_ours: Whether orphans are reparented to us, so that we have to reap them.
    """

    def __init__(self, is_ours: bool) -> None:
        self._is_ours = is_ours
        self._seen: dict[int, frozenset[ProcessId]] = {}
        self._dead: frozenset[int] = frozenset()

    def of(self, leader: int) -> Collection[ProcessId]:
        """Return those observed below a leader that lived at the last scan."""
        return self._seen.get(leader, frozenset())

    def scan(self, leaders: Collection[int]) -> None:
        """Find each leader's descendants now, and reap dead orphans that no caller waits for."""
        # Session 0 is the kernel's: most processes of an idle machine.
        pids = [pid for pid in procfs.pids() if procfs.session_of(pid) != 0]
        parents = {pid: procfs.parent_of(pid) or 0 for pid in pids}
        known = {
            leader: {pid for pid, ticks in self.of(leader) if procfs.start_ticks(pid) == ticks}
            for leader in leaders
        }
        self._seen = {
            leader: frozenset(
                (pid, ticks)
                for pid in below({leader, *still}, parents) | still
                if (ticks := procfs.start_ticks(pid)) is not None
            )
            for leader, still in known.items()
        }
        if self._is_ours:
            self._reap_orphans(leaders, parents)

    def _reap_orphans(self, leaders: Collection[int], parents: Mapping[int, int]) -> None:
        """Reap orphans; one that somebody waits for is gone before the next scan."""
        me, session = os.getpid(), os.getsid(0)
        dead = frozenset(
            pid
            for pid, parent in parents.items()
            if parent == me
            and pid not in leaders
            and procfs.session_of(pid) != session
            and not procfs.is_alive(pid)
        )
        for pid in dead & self._dead:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._dead = dead - self._dead
