"""Workers that survive SIGKILL are named, and a second stop changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.supervisor.process.child_process import ChildProcess
from disagg_cluster.supervisor.process.death_watch import StuckWorkersError
from disagg_cluster.supervisor.supervisor import Supervisor
from support.children import STUBBORN, LinePipe
from support.supervisors import QUICK, STARTING, tiny_spec


def test_the_error_names_each_stuck_worker_its_process_state_and_a_remedy() -> None:
    error = StuckWorkersError([("a", 12, "D"), ("b", 13, "S"), ("c", None, "")])

    assert error.exit_code == 6
    assert str(error).splitlines() == [
        "still there after SIGKILL:",
        "  a (pid 12): it waits in the kernel and cannot be interrupted; see /proc/12/stack and "
        "/proc/12/cgroup",
        "  b (pid 13): the kernel does not let it end: its control group may be frozen; see "
        "/proc/13/stack and /proc/13/cgroup",
        "  c: the kernel does not let it end: its control group may be frozen",
        "  They end once the kernel lets them; until then their ports and GPUs stay taken.",
        "  A frozen control group has to be thawed, a hung driver or file server to be mended.",
        "  `disagg-node stop --workers` tries again; the next `disagg-node start` waits for them.",
    ]


def test_a_second_stop_during_a_stuck_stop_names_the_same_stuck_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disagg_cluster.supervisor.ending._KILL_SECONDS", 0.2)
    policy = replace(QUICK, stop_seconds=0.1)
    spec = tiny_spec(tmp_path, "import signal; signal.pause()", policy=policy)

    async def story() -> None:
        states: asyncio.Queue[tuple[object, int | None]] = asyncio.Queue()
        supervisor = Supervisor(
            [spec],
            lambda _worker, _old, new, pid, _why: states.put_nowait((new, pid)),
            lambda _worker: None,
        )
        await supervisor.start()
        state, pid = await states.get()
        assert (state, supervisor.pid("w")) == (STARTING, pid)
        assert pid is not None
        with monkeypatch.context() as patch:
            patch.setattr(ChildProcess, "signal_group", lambda _child, _sign: True)
            both = await asyncio.gather(supervisor.stop(), supervisor.stop(drain=False))
        assert both == [("w",), ("w",)]
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    asyncio.run(story())


def test_a_suspended_daemon_kills_a_worker_before_it_counts_as_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disagg_cluster.supervisor.ending._KILL_SECONDS", 1.0)
    pipe = LinePipe(tmp_path)
    says = "import sys; print('deaf', file=open(sys.argv[1], 'w')); signal.pause()"
    policy = replace(QUICK, stop_seconds=0.2, leftover_seconds=0)
    spec = tiny_spec(tmp_path, STUBBORN + says, str(pipe.path), policy=policy)

    async def story() -> None:
        supervisor = Supervisor([spec], lambda *_: None, lambda _worker: None)
        await supervisor.start()
        assert pipe.line() == "deaf"
        stopping = asyncio.create_task(supervisor.stop())
        await asyncio.sleep(0.01)
        time.sleep(1.4)  # beyond all its deadlines, as a daemon suspended by a signal
        assert await stopping == ()

    asyncio.run(story())
    pipe.close()
