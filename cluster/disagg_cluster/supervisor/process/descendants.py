"""Who was seen below each worker's leader: known still when it has left him and his session."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from disagg_cluster.host.processes import procfs
from disagg_cluster.supervisor.process.family import ProcessId


def below(roots: Iterable[int], parents: Mapping[int, int]) -> frozenset[int]:
    """All that descend from some processes, without these; `parents` is by pid."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        fresh = set(children.get(waiting.pop(), ())) - found
        found |= fresh
        waiting.extend(fresh)
    return frozenset(found)


class Descendants:
    """What was seen below the leaders, from look to look; and the burying of orphans.

    Args:
        is_ours: Whether orphans fall to us, so that we have to bury them.
    """

    def __init__(self, is_ours: bool) -> None:
        self._is_ours = is_ours
        self._seen: dict[int, frozenset[ProcessId]] = {}
        self._dead: frozenset[int] = frozenset()

    def of(self, leader: int) -> Collection[ProcessId]:
        """Those that were seen below a leader and lived at the last look."""
        return self._seen.get(leader, frozenset())

    def look(self, leaders: Collection[int]) -> None:
        """See who is below each leader now, and bury dead orphans that nobody waits for."""
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
            self._bury(leaders, parents)

    def _bury(self, leaders: Collection[int], parents: Mapping[int, int]) -> None:
        """Bury orphans; one that somebody waits for is gone before the next look."""
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
