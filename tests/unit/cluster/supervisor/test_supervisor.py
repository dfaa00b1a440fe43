"""A supervisor of real children: started, watched, restarted, given up, drained and stopped."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.state import Health, LaunchCommand, WorkerState
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget, probe
from disagg_cluster.supervisor.process.child_process import start
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import EnginePage
from support.children import (
    PYTHON,
    SERVER,
    STUBBORN,
    LinePipe,
    children,
    descriptors,
    is_gone,
    wait_readable,
)
from support.supervisors import (
    BACKOFF,
    DRAINING,
    FAILED,
    QUICK,
    READY,
    STARTING,
    STOPPED,
    RunningSupervisor,
    supervised,
)


def test_workers_start_serve_and_stop_and_each_change_is_reported(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        first = {(await harness.until(READY)).worker, (await harness.until(READY)).worker}
        assert first == {"a", "b"}
        statuses = harness.supervisor.statuses()
        assert [(s.worker, s.state, s.restarts) for s in statuses] == [
            ("a", "ready", 0),
            ("b", "ready", 0),
        ]
        assert all(s.start_timestamp_seconds for s in statuses)

        assert await harness.supervisor.stop() == ()
        assert harness.seen() == [DRAINING, DRAINING, STOPPED, STOPPED]
        assert {s.start_timestamp_seconds for s in harness.supervisor.statuses()} == {None}

    supervised([spec(name="a"), spec(name="b")], story)


def test_a_change_names_the_process_and_the_reason(spec: Callable[..., WorkerSpec]) -> None:
    async def story(harness: RunningSupervisor) -> None:
        starting = await harness.until(STARTING)
        assert (starting.worker, starting.old, starting.why) == ("w", STOPPED, "start 1")
        ready = await harness.until(READY)
        assert (ready.pid, ready.why) == (starting.pid, "healthy")
        assert ready.pid in children()

    supervised([spec()], story)


def test_a_killed_worker_is_started_again_and_serves_again(spec: Callable[..., WorkerSpec]) -> None:
    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)

        crash = await harness.until(BACKOFF)
        assert (crash.old, crash.pid) == (READY, None)
        assert crash.why.startswith("ended unasked by signal 9 (Killed), next start in 0.0 s")
        again = await harness.until(READY)
        assert again.pid != first.pid
        assert harness.supervisor.statuses()[0].restarts == 1
        [snapshot] = harness.supervisor.snapshots()
        assert (snapshot.reason, snapshot.cause) == ("healthy", crash.why.partition("; end of")[0])

    supervised([spec()], story)


def test_an_unrequested_exit_with_code_0_is_a_crash(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        crash = await harness.until(BACKOFF)
        assert crash.why.startswith("ended unasked with exit code 0")
        await harness.until(STARTING)

    supervised([spec("pass")], story)


def test_a_worker_in_a_crash_loop_fails_with_its_last_log_lines_and_others_run_on(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        failed = await harness.until(FAILED, "bad")
        assert "given up after 3 crashes" in failed.why
        assert failed.why.endswith("bad.log:\n  no room for the KV cache")
        if harness.supervisor.statuses()[0].state != "ready":
            await harness.until(READY, "good")
        assert [(s.state, s.restarts) for s in harness.supervisor.statuses()] == [
            ("ready", 0),
            ("failed", 2),
        ]

    bad = spec("raise SystemExit('no room for the KV cache')", name="bad")
    supervised([spec(name="good"), bad], story)


def test_a_worker_with_a_missing_program_fails_and_others_run_on(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        failed = await harness.until(FAILED, "bad")
        assert "cannot start /nowhere/python: no such program" in failed.why
        assert "from an earlier run" not in failed.why
        if harness.supervisor.statuses()[0].state != "ready":
            await harness.until(READY, "good")

    bad = replace(spec(name="bad"), command=LaunchCommand(("/nowhere/python",), {}))
    bad.log_path.write_text("from an earlier run\n")
    supervised([spec(name="good"), bad], story)


def test_a_worker_that_ignores_sigterm_is_killed_at_the_deadline(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        assert await harness.supervisor.stop() == ()
        asked = await harness.until(DRAINING)
        stopped = await harness.until(STOPPED)
        assert asked.pid is not None
        assert stopped.why == "ended by signal 9 (Killed)"

    stubborn = spec(policy=replace(QUICK, stop_seconds=0.1))
    argv = (*PYTHON, STUBBORN + SERVER, *stubborn.command.argv[5:])
    assert argv[-1] == "tiny"
    supervised([replace(stubborn, command=LaunchCommand(argv, {}))], story)


def test_leftover_processes_of_a_dead_leader_are_killed_before_the_restart(
    spec: Callable[..., WorkerSpec], pipe: LinePipe
) -> None:
    leaves = STUBBORN + (
        "import os, sys\n"
        "pipe = open(sys.argv[1], 'w')\n"
        "left = os.fork()\n"
        "while left == 0: signal.pause()\n"
        # Not by the child: it may be killed before it has run.
        "print(left, file=pipe, flush=True)\n"
        "os._exit(1)"
    )

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(BACKOFF)
        left = int(await asyncio.to_thread(pipe.line))
        await harness.until(STARTING)
        assert is_gone(left, 0)
        second = int(await asyncio.to_thread(pipe.line))
        await harness.supervisor.stop()
        assert is_gone(second, 0)

    supervised([spec(leaves, str(pipe.path))], story)


def test_a_worker_is_not_started_while_a_foreign_process_holds_its_port(
    spec: Callable[..., WorkerSpec], tmp_path: Path
) -> None:
    """It is named and awaited without counting a crash; once it has ended, the worker starts."""
    worker = spec(policy=replace(QUICK, crash_limit=1))
    foreign = [*PYTHON, SERVER, str(worker.target.port), "tiny"]
    server = start(foreign, dict(os.environ), tmp_path / "foreign.log")

    async def story(harness: RunningSupervisor) -> None:
        waits = await harness.until(BACKOFF)
        port = worker.target.port
        assert f"another process listens on port {port}: pid {server.pid} (" in waits.why
        assert waits.pid is None
        server.signal_group(signal.SIGKILL)
        ready = await harness.until(READY)
        assert ready.pid != server.pid
        assert [status.restarts for status in harness.supervisor.statuses()] == [0]

    try:
        while probe(worker.target, server.pid, 5).health is not Health.HEALTHY:
            os.sched_yield()
        supervised([worker], story)
    finally:
        server.signal_group(signal.SIGKILL)
        assert wait_readable(server.pidfd)
        server.reap()


@pytest.mark.parametrize("hides", [False, True])
def test_a_helper_that_left_the_session_ends_with_its_worker(
    spec: Callable[..., WorkerSpec], tmp_path: Path, pipe: LinePipe, hides: bool
) -> None:
    """It may go on serving in the worker's place, even with an environment without the mark."""
    helper = "import sys; print('up', file=open(sys.argv[1], 'w')); import signal; signal.pause()"
    escapes = SERVER.replace(
        "while True:",
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    environment = {{}} if {hides} else dict(os.environ)\n"
        "    print(os.getpid(), file=open(sys.argv[3], 'w'), flush=True)\n"
        f"    os.execve({PYTHON[0]!r}, [*{list(PYTHON)!r}, {helper!r}, sys.argv[3]], environment)\n"
        "while True:",
    )
    worker = spec()
    command = LaunchCommand((*PYTHON, escapes, str(worker.target.port), "tiny", str(pipe.path)), {})

    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        escaped = int(await asyncio.to_thread(pipe.line))
        assert await asyncio.to_thread(pipe.line) == "up"
        assert procfs.session_of(escaped) == escaped
        assert first.pid is not None
        if hides:
            harness.supervisor.scan_descendants()
        os.kill(first.pid, signal.SIGKILL)
        await harness.until(STARTING)
        assert is_gone(escaped, 0), "the successor was started beside it"
        await harness.until(READY)
        await asyncio.to_thread(pipe.line)
        assert await asyncio.to_thread(pipe.line) == "up"
        if hides:
            harness.supervisor.scan_descendants()

    supervised([replace(worker, command=command)], story)


def test_a_worker_never_ready_in_time_is_stopped_and_finally_fails(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(STARTING)
        late = await harness.until(BACKOFF)
        assert late.pid == first.pid
        assert late.why.startswith("not ready within 0.5 s")
        assert late.why.endswith("loading\n  still loading")
        assert "not ready within 0.5 s" in (await harness.until(FAILED)).why

    worker = spec(policy=replace(QUICK, start_seconds=0.5, crash_limit=2))
    loads = "echo loading; echo still loading; exec sleep 1000"
    supervised([replace(worker, command=LaunchCommand(("/bin/sh", "-c", loads), {}))], story)


def test_a_worker_that_hangs_is_killed_and_started_again(spec: Callable[..., WorkerSpec]) -> None:
    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGSTOP)

        hung = await harness.until(BACKOFF)
        assert hung.why.startswith("hangs: 3 probes failed, the last one: /health: no answer")
        assert (await harness.until(READY)).pid != first.pid

    supervised([spec()], story, probe_seconds=0.3)


def test_the_exit_of_a_failed_workers_process_is_reported_too(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(STARTING)
        failed = await harness.until(FAILED)
        ended = await harness.until(FAILED)
        assert (failed.old, failed.pid) == (STARTING, first.pid)
        assert (ended.old, ended.pid, ended.why) == (
            FAILED,
            None,
            "ended by signal 15 (Terminated)",
        )

    late = spec(policy=replace(QUICK, start_seconds=0.1, crash_limit=1))
    supervised([replace(late, command=LaunchCommand(("/bin/sleep", "1000"), {}))], story)


def test_no_second_probe_of_a_worker_starts_during_a_slow_one(
    spec: Callable[..., WorkerSpec],
) -> None:
    asked: list[int] = []
    answer = threading.Event()

    def slow(
        target: ProbeTarget, session: int, _seconds: float, _proven: frozenset[int]
    ) -> ProbeResult:
        asked.append(target.port)
        answer.wait(20)
        return ProbeResult(Health.HEALTHY, "healthy")

    async def story(harness: RunningSupervisor) -> None:
        async with asyncio.timeout(20):
            while len(asked) < len(workers):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # ten intervals: that no probe follows cannot be awaited
        assert sorted(asked) == sorted(worker.target.port for worker in workers)
        answer.set()
        await harness.until(READY)

    workers = [spec(name="a"), spec(name="b")]
    supervised(workers, story, probe=slow)


def test_a_drain_waits_for_a_page_scraped_during_it_that_shows_no_requests(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        stopping = asyncio.create_task(harness.supervisor.stop())
        await harness.until(DRAINING)

        far = 2**62
        for t_ns, running, waiting in ((0, 0, 0), (far, 2, 0), (far, None, None), (far, 0, 1)):
            harness.pages["w"] = EnginePage("vllm", t_ns=t_ns, running=running, waiting=waiting)
            await asyncio.sleep(0.1)  # several polls: that nothing happens cannot be awaited
            assert harness.supervisor.statuses()[0].state == "draining"
        harness.pages["w"] = EnginePage("vllm", t_ns=far, running=0, waiting=0)
        assert await stopping == ()

    supervised([spec(policy=replace(QUICK, drain_seconds=30))], story)


def test_a_second_stop_without_drain_ends_a_drain_at_once(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        stopping = asyncio.create_task(harness.supervisor.stop())
        await harness.until(DRAINING)

        assert await harness.supervisor.stop(drain=False) == ()
        assert await stopping == ()

    supervised([spec(policy=replace(QUICK, drain_seconds=1000))], story)


def test_a_stop_during_back_off_starts_nothing_more(spec: Callable[..., WorkerSpec]) -> None:
    async def story(harness: RunningSupervisor) -> None:
        await harness.until(BACKOFF)
        await harness.supervisor.stop()
        assert harness.seen() == [STOPPED]

    slow = replace(QUICK, backoff_first_seconds=1000, backoff_max_seconds=1000)
    supervised([spec("pass", policy=slow)], story)


def test_a_stop_during_startup_stops_the_workers_already_started(
    spec: Callable[..., WorkerSpec],
) -> None:
    async def story() -> None:
        states: list[WorkerState] = []
        supervisor = Supervisor(
            [spec(name=name) for name in "abc"],
            lambda _worker, _old, new, _pid, _why: states.append(new),
            lambda _worker: None,
        )
        starting = asyncio.create_task(supervisor.start())
        await asyncio.sleep(0)
        assert await supervisor.stop() == ()
        await starting
        assert states == [STARTING, DRAINING, STOPPED]

    asyncio.run(story())


def test_fifty_quick_restarts_leave_no_descriptor_and_no_zombie(
    spec: Callable[..., WorkerSpec],
) -> None:
    others = children()

    async def story(harness: RunningSupervisor) -> None:
        pids = {(await harness.until(STARTING)).pid}
        open_before = descriptors()
        while len(pids) < 51:
            pids.add((await harness.until(STARTING)).pid)
        assert len(descriptors()) <= len(open_before) + 1
        assert len(children() - others) <= 1
        assert harness.supervisor.statuses()[0].restarts >= 50

    policy = replace(QUICK, backoff_first_seconds=0, crash_limit=1000)
    crashes = replace(spec(policy=policy), command=LaunchCommand(("/bin/false",), {}))
    supervised([crashes], story)


def test_a_worker_gets_its_own_variables_and_those_of_the_node(
    spec: Callable[..., WorkerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_THE_NODE", "1")
    worker = spec("", policy=replace(QUICK, crash_limit=1))
    script = "import os; print(os.environ['OWN'], os.environ['FROM_THE_NODE'])"
    argv = (sys.executable, "-S", "-E", "-c", script)

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(FAILED)

    supervised([replace(worker, command=LaunchCommand(argv, {"OWN": "2"}))], story)
    assert worker.log_path.read_text() == "2 1\n"
