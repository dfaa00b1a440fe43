"""Watches for the death of a child and of all that it leaves; reports those that stay."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from disagg_cluster.host.processes import procfs
from disagg_cluster.supervisor.process.child_process import ChildProcess
from disagg_cluster.supervisor.process.family import SharedScan
from disagg_cluster.supervisor.process.retries import Retrier
from disagg_exporter.errors import DisaggError

_DEATH, _REST = "process the death of its leader", "wait for those it left behind"
_CHECK_SECONDS = 0.05
EXIT_STUCK = 6
_STATES = {
    "D": "it waits in the kernel and cannot be interrupted",
    "T": "it is stopped",
    "t": "it is held by a debugger",
    "Z": "its process is over, but a thread or a child of it is not",
}
_ADVICE = (
    "  They end once the kernel lets them; until then their ports and GPUs stay taken.\n"
    "  A frozen control group has to be thawed, a hung driver or file server to be mended.\n"
    "  `disagg-node stop --workers` tries again; the next `disagg-node start` waits for them."
)


@dataclass(slots=True, eq=False)
class DeathWatch:
    """Watches one child after the other in the running loop.

    Args:
        retrier: Repeats a check that was not possible.
        scan: The scan of all processes, shared with workers whose children end in the same turn.
        exited: Receives the exit code (None if unknown) when the leader has died, and whether
            nothing else is left; the child is reaped then.
        gone: Called when the last of the processes it left has died; the child is reaped.
    """

    retrier: Retrier
    scan: SharedScan
    exited: Callable[[int | None, bool], None]
    gone: Callable[[], None]
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _child: ChildProcess | None = field(default=None, init=False)
    _leader_lives: bool = field(default=False, init=False)
    _rest_pidfd: int = field(default=-1, init=False)

    def begin(self, child: ChildProcess) -> None:
        """Watch a child whose leader lives."""
        self._child, self._leader_lives = child, True
        child.family.own_processes = self.scan.processes
        self.retrier.run("watch its process", self._watch_leader)

    def begin_with_rest(self, child: ChildProcess) -> None:
        """Watch a child whose leader has died and left other processes."""
        self._child, self._leader_lives = child, False
        child.family.own_processes = self.scan.processes
        self.scan.forget()
        self._await_rest()

    def check_now(self) -> bool:
        """Check at once; False if the leader is dead and that cannot be handled yet."""
        child = self._child
        if child is None or not self._leader_lives or not child.is_over():
            return True
        # It may have died, and left processes, after the scan made in this turn of the loop.
        self.scan.forget()
        return self.retrier.run(_DEATH, self._process_death)

    def close(self) -> None:
        """Stop watching, and let go of the child."""
        self._stop_watching()
        child, self._child = self._child, None
        if child is not None and child.pidfd >= 0:
            self._loop.remove_reader(child.pidfd)
            child.let_go()

    def _watch_leader(self) -> None:
        if self._child is not None:
            self._loop.add_reader(self._child.pidfd, self._leader_died)

    def _leader_died(self) -> None:
        if self._child is not None:
            self._loop.remove_reader(self._child.pidfd)
            self.retrier.run(_DEATH, self._process_death)

    def _process_death(self) -> None:
        child = self._child
        if child is None or not self._leader_lives:
            return
        code = child.exit_code()
        alone = not child.survivors()
        self._loop.remove_reader(child.pidfd)
        if alone:
            child.reap()
            self._child, self._leader_lives = None, False
            self.exited(code, True)
        else:
            self._leader_lives = False
            self.exited(code, False)
            self._await_rest()

    def _await_rest(self) -> None:
        self.retrier.run(_REST, self._watch_rest)

    def _watch_rest(self) -> None:
        self._stop_watching()
        child = self._child
        if child is None:
            return
        survivors = child.survivors()
        for pid in survivors:
            pidfd = child.watch(pid)
            if pidfd is not None:
                self._rest_pidfd = pidfd
                self._loop.add_reader(pidfd, self._await_rest)
                return
        if survivors:  # gone just now, or not ours to see
            self._loop.call_later(_CHECK_SECONDS, self._await_rest)
            return
        child.reap()
        child.let_go()
        self._child = None
        self.gone()

    def _stop_watching(self) -> None:
        if self._rest_pidfd >= 0:
            self._loop.remove_reader(self._rest_pidfd)
            os.close(self._rest_pidfd)
            self._rest_pidfd = -1


class StuckWorkersError(DisaggError):
    """Workers are still there after SIGKILL; the text names each and says what to do."""

    exit_code = EXIT_STUCK

    def __init__(self, stuck: Sequence[tuple[str, int | None, str]]) -> None:
        """`stuck`: name, pid and the kernel's letter for its state, empty if unknown."""
        lines = [_line(*worker) for worker in stuck]
        super().__init__("\n".join(["still there after SIGKILL:", *lines, _ADVICE]))


def stuck(pids: Mapping[str, int | None]) -> StuckWorkersError:
    """Return the error for workers that are still there, by pid, with what the kernel reports."""
    return StuckWorkersError(
        [(worker, pid, procfs.state(pid) if pid else "") for worker, pid in pids.items()]
    )


def _line(worker: str, pid: int | None, state: str) -> str:
    process = "" if pid is None else f" (pid {pid})"
    why = _STATES.get(state, "the kernel does not let it end: its control group may be frozen")
    hint = "" if pid is None else f"; see /proc/{pid}/stack and /proc/{pid}/cgroup"
    return f"  {worker}{process}: {why}{hint}"
