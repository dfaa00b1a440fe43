"""A crew of real children: started, watched, restarted, given up, drained and stopped."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.state import Health, WorkerState
from disagg_cluster.lifecycle.worker_identity import LaunchCommand
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget, probe
from disagg_cluster.supervisor.process.child_process import start
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import EnginePage
from support.children import (
    PYTHON,
    SERVER,
    STUBBORN,
    Ear,
    children,
    descriptors,
    is_gone,
    wait_readable,
)
from support.crews import (
    BACKOFF,
    DRAINING,
    FAILED,
    QUICK,
    READY,
    STARTING,
    STOPPED,
    Bridge,
    aboard,
    tiny_post,
)


@pytest.fixture
def post(tmp_path: Path) -> Callable[..., WorkerSpec]:
    """A post that runs a script, or the test server if there is none."""

    def post(
        script: str | None = None, *arguments: str, name: str = "w", policy: RestartPolicy = QUICK
    ) -> WorkerSpec:
        return tiny_post(tmp_path, script, *arguments, name=name, policy=policy)

    return post


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    ear = Ear(tmp_path)
    yield ear
    ear.close()


def test_workers_start_serve_and_stop_and_each_step_is_told(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        first = {(await ship.until(READY)).worker, (await ship.until(READY)).worker}
        assert first == {"a", "b"}
        statuses = ship.crew.statuses()
        assert [(s.worker, s.state, s.restarts) for s in statuses] == [
            ("a", "ready", 0),
            ("b", "ready", 0),
        ]
        assert all(s.start_timestamp_seconds for s in statuses)

        assert await ship.crew.stop() == ()
        assert ship.seen() == [DRAINING, DRAINING, STOPPED, STOPPED]
        assert {s.start_timestamp_seconds for s in ship.crew.statuses()} == {None}

    aboard([post(name="a"), post(name="b")], story)


def test_a_change_names_the_process_and_the_reason(post: Callable[..., WorkerSpec]) -> None:
    async def story(ship: Bridge) -> None:
        starting = await ship.until(STARTING)
        assert (starting.worker, starting.old, starting.why) == ("w", STOPPED, "start 1")
        ready = await ship.until(READY)
        assert (ready.pid, ready.why) == (starting.pid, "healthy")
        assert ready.pid in children()

    aboard([post()], story)


def test_a_killed_worker_is_started_again_and_serves_again(post: Callable[..., WorkerSpec]) -> None:
    async def story(ship: Bridge) -> None:
        first = await ship.until(READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)

        crash = await ship.until(BACKOFF)
        assert (crash.old, crash.pid) == (READY, None)
        assert crash.why.startswith("ended unasked by signal 9 (Killed), next start in 0.0 s")
        again = await ship.until(READY)
        assert again.pid != first.pid
        assert ship.crew.statuses()[0].restarts == 1

    aboard([post()], story)


def test_an_exit_with_code_0_that_nobody_asked_for_is_a_crash(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        crash = await ship.until(BACKOFF)
        assert crash.why.startswith("ended unasked with exit code 0")
        await ship.until(STARTING)

    aboard([post("pass")], story)


def test_a_crash_loop_is_given_up_with_its_last_words_and_the_others_go_on(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        failed = await ship.until(FAILED, "bad")
        assert "given up after 3 crashes" in failed.why
        assert failed.why.endswith("bad.log:\n  no room for the KV cache")
        if ship.crew.statuses()[0].state != "ready":
            await ship.until(READY, "good")
        assert [(s.state, s.restarts) for s in ship.crew.statuses()] == [
            ("ready", 0),
            ("failed", 2),
        ]

    bad = post("raise SystemExit('no room for the KV cache')", name="bad")
    aboard([post(name="good"), bad], story)


def test_a_program_that_does_not_exist_is_failed_and_the_others_go_on(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        failed = await ship.until(FAILED, "bad")
        assert "cannot start /nowhere/python: no such program" in failed.why
        assert "from an earlier run" not in failed.why
        if ship.crew.statuses()[0].state != "ready":
            await ship.until(READY, "good")

    bad = replace(post(name="bad"), command=LaunchCommand(("/nowhere/python",), {}))
    bad.log_path.write_text("from an earlier run\n")
    aboard([post(name="good"), bad], story)


def test_a_worker_that_ignores_sigterm_is_killed_at_the_deadline(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        await ship.until(READY)
        assert await ship.crew.stop() == ()
        asked = await ship.until(DRAINING)
        stopped = await ship.until(STOPPED)
        assert asked.pid is not None
        assert stopped.why == "ended by signal 9 (Killed)"

    stubborn = post(policy=replace(QUICK, stop_seconds=0.1))
    argv = (*PYTHON, STUBBORN + SERVER, *stubborn.command.argv[5:])
    assert argv[-1] == "tiny"
    aboard([replace(stubborn, command=LaunchCommand(argv, {}))], story)


def test_what_a_dead_leader_left_is_killed_before_its_successor_starts(
    post: Callable[..., WorkerSpec], ear: Ear
) -> None:
    leaves = STUBBORN + (
        "import os, sys\n"
        "ear = open(sys.argv[1], 'w')\n"
        "left = os.fork()\n"
        "while left == 0: signal.pause()\n"
        # Not by the one left: it may be killed before it has had its first turn.
        "print(left, file=ear, flush=True)\n"
        "os._exit(1)"
    )

    async def story(ship: Bridge) -> None:
        await ship.until(BACKOFF)
        left = int(await asyncio.to_thread(ear.line))
        await ship.until(STARTING)
        assert is_gone(left, 0)
        second = int(await asyncio.to_thread(ear.line))
        await ship.crew.stop()
        assert is_gone(second, 0)

    aboard([post(leaves, str(ear.path))], story)


def test_nothing_is_started_into_a_port_that_somebody_else_holds(
    post: Callable[..., WorkerSpec], tmp_path: Path
) -> None:
    """He is named and waited for; that is no crash, and when he has gone the worker starts."""
    worker = post(policy=replace(QUICK, crash_limit=1))
    foreign = [*PYTHON, SERVER, str(worker.target.port), "tiny"]
    server = start(foreign, dict(os.environ), tmp_path / "foreign.log")

    async def story(ship: Bridge) -> None:
        waits = await ship.until(BACKOFF)
        port = worker.target.port
        assert f"another process listens on port {port}: pid {server.pid} (" in waits.why
        assert waits.pid is None
        server.signal_group(signal.SIGKILL)
        ready = await ship.until(READY)
        assert ready.pid != server.pid
        assert [status.restarts for status in ship.crew.statuses()] == [0]

    try:
        while probe(worker.target, server.pid, 5).health is not Health.HEALTHY:
            os.sched_yield()
        aboard([worker], story)
    finally:
        server.signal_group(signal.SIGKILL)
        assert wait_readable(server.pidfd)
        server.reap()


@pytest.mark.parametrize("hides", [False, True])
def test_a_helper_that_left_the_session_ends_with_its_worker(
    post: Callable[..., WorkerSpec], tmp_path: Path, ear: Ear, hides: bool
) -> None:
    """It serves on in the worker's place, say; it may have left its environment behind, too."""
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
    worker = post()
    command = LaunchCommand((*PYTHON, escapes, str(worker.target.port), "tiny", str(ear.path)), {})

    async def story(ship: Bridge) -> None:
        first = await ship.until(READY)
        escaped = int(await asyncio.to_thread(ear.line))
        assert await asyncio.to_thread(ear.line) == "up"
        assert procfs.session_of(escaped) == escaped
        assert first.pid is not None
        if hides:
            ship.crew.look_for_descendants()
        os.kill(first.pid, signal.SIGKILL)
        await ship.until(STARTING)
        assert is_gone(escaped, 0), "the successor was started beside it"
        await ship.until(READY)
        await asyncio.to_thread(ear.line)
        assert await asyncio.to_thread(ear.line) == "up"
        if hides:
            ship.crew.look_for_descendants()

    aboard([replace(worker, command=command)], story)


def test_a_start_that_never_becomes_ready_is_ended_and_finally_given_up(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        first = await ship.until(STARTING)
        late = await ship.until(BACKOFF)
        assert late.pid == first.pid
        assert late.why.startswith("not ready within 0.5 s")
        assert late.why.endswith("loading\n  still loading")
        assert "not ready within 0.5 s" in (await ship.until(FAILED)).why

    worker = post(policy=replace(QUICK, start_seconds=0.5, crash_limit=2))
    loads = "echo loading; echo still loading; exec sleep 1000"
    aboard([replace(worker, command=LaunchCommand(("/bin/sh", "-c", loads), {}))], story)


def test_a_worker_that_hangs_is_killed_and_started_again(post: Callable[..., WorkerSpec]) -> None:
    async def story(ship: Bridge) -> None:
        first = await ship.until(READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGSTOP)

        hung = await ship.until(BACKOFF)
        assert hung.why.startswith("hangs: 3 probes failed, the last one: /health: no answer")
        assert (await ship.until(READY)).pid != first.pid

    aboard([post()], story, probe_seconds=0.3)


def test_the_end_of_a_failed_workers_process_is_told_too(post: Callable[..., WorkerSpec]) -> None:
    async def story(ship: Bridge) -> None:
        first = await ship.until(STARTING)
        failed = await ship.until(FAILED)
        ended = await ship.until(FAILED)
        assert (failed.old, failed.pid) == (STARTING, first.pid)
        assert (ended.old, ended.pid, ended.why) == (
            FAILED,
            None,
            "ended by signal 15 (Terminated)",
        )

    late = post(policy=replace(QUICK, start_seconds=0.1, crash_limit=1))
    aboard([replace(late, command=LaunchCommand(("/bin/sleep", "1000"), {}))], story)


def test_a_probe_that_takes_long_is_waited_for_and_not_joined_by_another(
    post: Callable[..., WorkerSpec],
) -> None:
    asked: list[int] = []
    answer = threading.Event()

    def slow(
        target: ProbeTarget, session: int, _seconds: float, _proven: frozenset[int]
    ) -> ProbeResult:
        asked.append(target.port)
        answer.wait(20)
        return ProbeResult(Health.HEALTHY, "healthy")

    async def story(ship: Bridge) -> None:
        await asyncio.sleep(0.2)  # ten looks: that nothing more is asked cannot be awaited
        assert sorted(asked) == sorted(worker.target.port for worker in workers)
        answer.set()
        await ship.until(READY)

    workers = [post(name="a"), post(name="b")]
    aboard(workers, story, probe=slow)


def test_a_drain_waits_for_a_page_of_its_own_time_that_shows_no_request(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        await ship.until(READY)
        stopping = asyncio.create_task(ship.crew.stop())
        await ship.until(DRAINING)

        far = 2**62
        for t_ns, running, waiting in ((0, 0, 0), (far, 2, 0), (far, None, None), (far, 0, 1)):
            ship.pages["w"] = EnginePage("vllm", t_ns=t_ns, running=running, waiting=waiting)
            await asyncio.sleep(0.1)  # several looks: that nothing happens cannot be awaited
            assert ship.crew.statuses()[0].state == "draining"
        ship.pages["w"] = EnginePage("vllm", t_ns=far, running=0, waiting=0)
        assert await stopping == ()

    aboard([post(policy=replace(QUICK, drain_seconds=30))], story)


def test_stopped_again_without_drain_nothing_more_is_waited_for(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story(ship: Bridge) -> None:
        await ship.until(READY)
        stopping = asyncio.create_task(ship.crew.stop())
        await ship.until(DRAINING)

        assert await ship.crew.stop(drain=False) == ()
        assert await stopping == ()

    aboard([post(policy=replace(QUICK, drain_seconds=1000))], story)


def test_a_stop_during_back_off_starts_nothing_more(post: Callable[..., WorkerSpec]) -> None:
    async def story(ship: Bridge) -> None:
        await ship.until(BACKOFF)
        await ship.crew.stop()
        assert ship.seen() == [STOPPED]

    slow = replace(QUICK, backoff_first_seconds=1000, backoff_max_seconds=1000)
    aboard([post("pass", policy=slow)], story)


def test_a_stop_while_the_crew_still_starts_ends_all_that_started(
    post: Callable[..., WorkerSpec],
) -> None:
    async def story() -> None:
        states: list[WorkerState] = []
        crew = Supervisor(
            [post(name=name) for name in "abc"],
            lambda _worker, _old, new, _pid, _why: states.append(new),
            lambda _worker: None,
        )
        starting = asyncio.create_task(crew.start())
        await asyncio.sleep(0)
        assert await crew.stop() == ()
        await starting
        assert states == [STARTING, DRAINING, STOPPED]

    asyncio.run(story())


def test_fifty_quick_restarts_leave_no_descriptor_and_no_zombie(
    post: Callable[..., WorkerSpec],
) -> None:
    others = children()

    async def story(ship: Bridge) -> None:
        pids = {(await ship.until(STARTING)).pid}
        open_before = descriptors()
        while len(pids) < 51:
            pids.add((await ship.until(STARTING)).pid)
        assert len(descriptors()) <= len(open_before) + 1
        assert len(children() - others) <= 1
        assert ship.crew.statuses()[0].restarts >= 50

    policy = replace(QUICK, backoff_first_seconds=0, crash_limit=1000)
    crashes = replace(post(policy=policy), command=LaunchCommand(("/bin/false",), {}))
    aboard([crashes], story)


def test_a_worker_gets_its_own_variables_and_those_of_the_node(
    post: Callable[..., WorkerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_THE_NODE", "1")
    worker = post("", policy=replace(QUICK, crash_limit=1))
    script = "import os; print(os.environ['OWN'], os.environ['FROM_THE_NODE'])"
    argv = (sys.executable, "-S", "-E", "-c", script)

    async def story(ship: Bridge) -> None:
        await ship.until(FAILED)

    aboard([replace(worker, command=LaunchCommand(argv, {"OWN": "2"}))], story)
    assert worker.log_path.read_text() == "2 1\n"
