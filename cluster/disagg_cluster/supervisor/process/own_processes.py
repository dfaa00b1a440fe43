"""All processes of our own user at one moment, seen once for all workers that ask in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import mark_of, own_processes


class OwnProcess(NamedTuple):
    """A living process of our own user: its pid, its session and the clock tick of its start."""

    pid: int
    session: int
    start_ticks: int


class OwnProcesses:
    """Those that lived when this was made; each one's mark is read once, when it is asked for.

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
    """One look at all processes for whoever asks in one turn of the running loop.

    A look takes some 0.1 ms for each process, and workers often end together. It is made in the
    turn in which it is asked for: after the deaths that the loop tells of in this turn, so that
    none of them can have left a process that it does not show. Whoever learns of a death in
    another way asks for a new one (`forget`).

    Args:
        look: Looks at all processes.
    """

    def __init__(self, look: Callable[[], OwnProcesses] = OwnProcesses) -> None:
        self._look = look
        self._seen: OwnProcesses | None = None

    def look(self) -> OwnProcesses:
        """What is seen in this turn."""
        if self._seen is None:
            seen = self._look()
            # It is called before anything that the loop tells of in the next turn.
            asyncio.get_running_loop().call_soon(self.forget)
            self._seen = seen
        return self._seen

    def forget(self) -> None:
        """Look anew when asked next."""
        self._seen = None
