"""Workers that end together share one process scan, and leftovers of each are found."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.supervisor.process.child_process import ChildProcess, start
from disagg_cluster.supervisor.process.death_watch import DeathWatch
from disagg_cluster.supervisor.process.family import OwnProcesses, SharedScan
from disagg_cluster.supervisor.process.retries import DescriptorReserve, Retrier, SupervisionHealth
from support.children import PYTHON, LinePipe, is_gone, wait_readable
from support.running_node import wait_for

SLEEPS = "import signal; signal.pause()"
LEAVES_A_HELPER = """
import os, signal, sys
signal.sigwait({signal.SIGUSR1})
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    signal.pause()
"""


class CountedScan(SharedScan):
    """The real process scan, counted."""

    def __init__(self) -> None:
        super().__init__(self._counted)
        self.looks = 0

    def _counted(self) -> OwnProcesses:
        self.looks += 1
        return OwnProcesses()


class Watched:
    """A child under watch, and what was reported of it."""

    def __init__(self, folder: Path, scan: SharedScan, *argv: str) -> None:
        log = folder / "w.log"
        self.child = start([*PYTHON, *argv], {WORKER_MARK: str(log)}, log)
        self.told: list[bool] = []
        self.over = asyncio.Event()
        supervision = SupervisionHealth(logging.getLogger("test"))
        retrier = Retrier("w", supervision, DescriptorReserve(0))
        self.watch = DeathWatch(retrier, scan, self._exited, self.over.set)
        self.watch.begin(self.child)

    def _exited(self, _code: int | None, alone: bool) -> None:
        self.told.append(alone)
        if alone:
            self.over.set()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / str(number) for number in range(8)]


def test_simultaneous_exits_share_one_process_scan(folders: list[Path]) -> None:
    async def story() -> None:
        scan = CountedScan()
        watched = [Watched(folder, scan, SLEEPS) for folder in folders]
        await asyncio.sleep(0)

        for each in watched:
            os.kill(each.child.pid, signal.SIGKILL)
        assert all(wait_readable(each.child.pidfd) for each in watched)
        await asyncio.gather(*(each.over.wait() for each in watched))

        assert scan.looks == 1
        assert [each.told for each in watched] == [[True]] * len(watched)

    asyncio.run(story())


def test_signals_to_all_workers_in_one_loop_turn_share_one_process_scan(
    folders: list[Path],
) -> None:
    async def story() -> None:
        scan = CountedScan()
        watched = [Watched(folder, scan, SLEEPS) for folder in folders]

        for each in watched:
            assert each.child.signal_group(signal.SIGKILL)

        assert scan.looks == 1
        await asyncio.gather(*(each.over.wait() for each in watched))

    asyncio.run(story())


def test_a_helper_left_after_the_shared_scan_is_still_found(tmp_path: Path) -> None:
    """The exit is found before the loop reports it, in the turn in which a scan was made."""
    pipe = LinePipe(tmp_path)

    async def story() -> None:
        scan = CountedScan()
        watched = Watched(tmp_path, scan, LEAVES_A_HELPER, str(pipe.path))
        # The signal is blocked from the start, so that it waits for sigwait.
        scan.processes()
        os.kill(watched.child.pid, signal.SIGUSR1)
        helper = int(pipe.line())
        assert wait_readable(watched.child.pidfd)

        try:
            assert watched.watch.check_now()

            assert watched.told == [False]
            assert procfs.is_alive(helper)
        finally:
            os.kill(helper, signal.SIGKILL)
        await watched.over.wait()
        assert is_gone(helper)

    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        asyncio.run(story())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        pipe.close()


def test_each_loop_turn_scans_anew_and_a_failed_scan_is_not_cached() -> None:
    made: list[OwnProcesses] = []

    def look() -> OwnProcesses:
        made.append(OwnProcesses())
        if len(made) == 1:
            raise OSError(24, "Too many open files")
        return made[-1]

    async def story() -> None:
        scan = SharedScan(look)
        with pytest.raises(OSError, match="Too many"):
            scan.processes()
        assert scan.processes() is scan.processes() is made[1]
        await asyncio.sleep(0)
        assert scan.processes() is made[2]

    asyncio.run(story())


def test_an_observed_process_is_alive_and_has_a_session_and_mark(tmp_path: Path) -> None:
    child: ChildProcess = start([*PYTHON, SLEEPS], {WORKER_MARK: "/x/w.log"}, tmp_path / "w.log")
    try:
        # The kernel lets us go on before the new program has its environment.
        wait_for(Path(f"/proc/{child.pid}/environ").read_bytes, "an environment")
        seen = OwnProcesses()

        [mine] = [each for each in seen.living if each.pid == child.pid]
        assert mine == (child.pid, child.pid, child.start_ticks)
        assert seen.mark_of(child.pid) == "/x/w.log"
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
    assert child.pid not in {each.pid for each in OwnProcesses().living}
    child.reap()
