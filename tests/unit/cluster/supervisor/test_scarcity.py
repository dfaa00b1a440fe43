"""Workers that die while the system is out of descriptors, memory or processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.state import Decision, Event, Exited, Lifecycle, WorkerState
from disagg_cluster.lifecycle.state_machine import decide
from disagg_cluster.supervisor import worker_spec
from disagg_cluster.supervisor.process import retries
from disagg_cluster.supervisor.process.child_process import ChildProcess, StartError
from disagg_cluster.supervisor.supervisor import Supervisor
from support.children import STUBBORN, LinePipe, is_gone
from support.supervisors import (
    BACKOFF,
    QUICK,
    READY,
    STARTING,
    RunningSupervisor,
    supervised,
    tiny_spec,
)


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let nothing more be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def supervision_is_well(harness: RunningSupervisor) -> bool:
    return all(status.success for status in harness.supervisor.collectors())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_without_free_descriptors_a_dead_worker_is_restarted_with_the_reserve(
    tmp_path: Path,
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        with no_descriptor_left():
            os.kill(first.pid, signal.SIGKILL)
            again = await harness.until(STARTING)
        assert again.pid != first.pid
        await harness.until(READY)

    supervised([tiny_spec(tmp_path)], story)


def test_without_a_reserve_a_dead_worker_is_restarted_once_descriptors_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries.DescriptorReserve, "refill", lambda _self: None)

    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        with no_descriptor_left():
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: not supervision_is_well(harness))
            assert harness.seen() == []
        await harness.until(READY)
        assert supervision_is_well(harness)
        assert harness.supervisor.statuses()[0].restarts == 1

    supervised([tiny_spec(tmp_path)], story)


def test_an_exit_that_could_not_be_handled_for_lack_of_memory_is_handled_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 0

    def without_memory(life: Lifecycle, event: Event, *more: Any) -> Decision:
        nonlocal refusals
        if isinstance(event, Exited) and refusals < 2:
            refusals += 1
            raise MemoryError
        return decide(life, event, *more)

    monkeypatch.setattr(retries, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr("disagg_cluster.supervisor.worker_supervisor.decide", without_memory)

    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        assert (await harness.until(STARTING)).pid != first.pid
        await harness.until(READY)
        assert refusals == 2
        assert harness.supervisor.statuses()[0].restarts == 1

    supervised([tiny_spec(tmp_path)], story)


def test_leftovers_of_a_dead_leader_are_awaited_although_scans_keep_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan of its session keeps failing; no process is forgotten, no worker starts twice."""
    leaves = STUBBORN + (
        "import os, sys\n"
        "pipe = open(sys.argv[1], 'w')\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), file=pipe, flush=True)\n"
        "    while True: signal.pause()\n"
        "signal.pause()"
    )
    monkeypatch.setattr(retries, "RETRY_SECONDS", 0.01)
    pipe = LinePipe(tmp_path)
    look, looks = procfs.session_pids, 0

    def sometimes(session: int) -> tuple[int, ...]:
        nonlocal looks
        looks += 1
        if looks % 3:
            raise OSError(errno.ENOMEM, "no memory")
        return look(session)

    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(STARTING)
        left = int(await asyncio.to_thread(pipe.line))
        monkeypatch.setattr(procfs, "session_pids", sometimes)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await harness.until(BACKOFF)
        await harness.until(STARTING)
        assert is_gone(left, 0)
        monkeypatch.setattr(procfs, "session_pids", look)

    supervised([tiny_spec(tmp_path, leaves, str(pipe.path))], story)
    pipe.close()


def test_a_zombie_that_cannot_be_reaped_yet_is_not_killed_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[signal.Signals] = []
    signal_group = ChildProcess.signal_group
    survivors = ChildProcess.survivors

    def counted(child: ChildProcess, sign: signal.Signals) -> bool:
        sent.append(sign)
        return signal_group(child, sign)

    def blind(_child: ChildProcess) -> tuple[int, ...]:
        raise OSError(errno.EMFILE, "too many open files")

    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        monkeypatch.setattr(ChildProcess, "signal_group", counted)
        monkeypatch.setattr(ChildProcess, "survivors", blind)
        stopping = asyncio.create_task(harness.supervisor.stop(drain=False))
        await until(lambda: not supervision_is_well(harness))
        await asyncio.sleep(0.6)  # longer than the deadline: what is not sent cannot be awaited
        assert signal.SIGKILL not in sent
        monkeypatch.setattr(ChildProcess, "survivors", survivors)
        assert await stopping == ()

    quick = tiny_spec(tmp_path)
    policy = replace(quick.policy, stop_seconds=0.2)
    supervised([replace(quick, policy=policy)], story)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_refused_start_is_tried_again_and_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    start, refusals = worker_spec.start, 0

    def refuse(*arguments: object) -> ChildProcess:
        nonlocal refusals
        refusals += 1
        if refusals <= 5:
            raise StartError("cannot start it: not now", refused=True, errno=number)
        return start(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_spec, "start", refuse)
    monkeypatch.setattr("disagg_cluster.lifecycle.transitions._LEAST_REFUSED_SECONDS", 0.01)

    async def story(harness: RunningSupervisor) -> None:
        waiting = await harness.until(BACKOFF)
        assert waiting.why.startswith("cannot start it: not now, not counted as a crash")
        assert not supervision_is_well(harness)
        await harness.until(READY)
        assert supervision_is_well(harness)
        assert harness.supervisor.statuses()[0].restarts == 0

    supervised([tiny_spec(tmp_path)], story)


def test_an_unwritable_log_does_not_fail_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disagg_cluster.lifecycle.transitions._LEAST_REFUSED_SECONDS", 0.01)
    spec = tiny_spec(tmp_path)
    spec.log_path.mkdir()

    async def story(harness: RunningSupervisor) -> None:
        for _ in range(spec.policy.crash_limit + 2):
            waiting = await harness.until(BACKOFF)
            assert "cannot write the log" in waiting.why
        spec.log_path.rmdir()
        await harness.until(READY)

    supervised([spec], story)


def test_a_suspended_daemon_does_not_end_a_start_for_a_deadline_it_missed(
    tmp_path: Path,
) -> None:
    """Its deadline has long passed when the loop runs again."""
    ahead_ns = 0
    spec = tiny_spec(tmp_path, "import signal; signal.pause()")
    spec = replace(spec, policy=replace(QUICK, start_seconds=0.3))

    async def story() -> None:
        nonlocal ahead_ns
        states: list[WorkerState] = []
        supervisor = Supervisor(
            [spec],
            lambda _worker, _old, new, _pid, _why: states.append(new),
            lambda _worker: None,
            clock=lambda: time.monotonic_ns() + ahead_ns,
        )
        await supervisor.start()
        ahead_ns = 3600 * 1_000_000_000
        await asyncio.sleep(1.0)  # well beyond its deadline: that nothing is done about it
        assert states == [STARTING]
        assert await supervisor.stop() == ()

    asyncio.run(story())


def test_a_change_is_reported_again_if_its_listener_fails(tmp_path: Path) -> None:
    failures = [ValueError("not now")] * 2

    async def story(harness: RunningSupervisor) -> None:
        put = harness.changes.put_nowait

        def odd(change: object) -> None:
            if failures:
                raise failures.pop()
            put(change)  # type: ignore[arg-type]

        await harness.until(STARTING)
        harness.changes.put_nowait = odd  # type: ignore[method-assign]
        await harness.until(READY)
        assert failures == []

    supervised([tiny_spec(tmp_path)], story)
