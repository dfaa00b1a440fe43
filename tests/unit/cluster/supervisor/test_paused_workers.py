"""Real workers that are paused, resumed and restarted by hand."""

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.state import PauseRequested, RestartRequested, UnpauseRequested
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_exporter.model import EnginePage
from support.supervisors import (
    BACKOFF,
    DRAINING,
    FAILED,
    QUICK,
    READY,
    STARTING,
    RunningSupervisor,
    supervised,
    tiny_spec,
)


async def pids_once_ready(harness: RunningSupervisor, *workers: str) -> dict[str, int]:
    pids: dict[str, int] = {}
    while set(pids) != set(workers):
        change = await harness.until(READY)
        assert change.pid is not None
        pids[change.worker] = change.pid
    return pids


def paused(harness: RunningSupervisor, worker: str) -> bool:
    return next(s.paused for s in harness.supervisor.statuses() if s.worker == worker)


def test_a_hanging_worker_is_not_killed_while_it_is_paused(
    tmp_path: Path,
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        pids = await pids_once_ready(harness, "a", "b")
        harness.supervisor.handle("a", PauseRequested())
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        killed = await harness.until(BACKOFF, "b")
        assert "hangs" in killed.why
        await harness.until(READY, "b")

        assert procfs.is_alive(pids["a"])
        os.kill(pids["a"], signal.SIGCONT)
        harness.supervisor.handle("a", UnpauseRequested())
        assert not paused(harness, "a")
        assert harness.supervisor.snapshots()[0].pid == pids["a"]

    posts = [tiny_spec(tmp_path, name=name) for name in "ab"]
    supervised(posts, story, probe_seconds=0.2)


def test_the_exit_of_a_paused_worker_is_reported_and_its_restart_follows_the_pause(
    tmp_path: Path,
) -> None:
    async def story(harness: RunningSupervisor) -> None:
        pids = await pids_once_ready(harness, "a", "b")
        harness.supervisor.handle("a", PauseRequested())
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        died = await harness.until(BACKOFF, "a")
        assert "ended unasked by signal 9" in died.why
        assert died.pid is None
        await harness.until(READY, "b")  # whose back-off began later than that of `a`
        assert harness.supervisor.snapshots()[0].pid is None

        harness.supervisor.handle("a", UnpauseRequested())
        await harness.until(READY, "a")
        assert harness.supervisor.statuses()[0].restarts == 1

    supervised([tiny_spec(tmp_path, name=name) for name in "ab"], story)


def test_the_journal_keeps_the_pause_of_a_worker_that_died(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", logging.getLogger("test"))
    posts = [tiny_spec(tmp_path, name=name) for name in "ab"]

    async def die_paused(harness: RunningSupervisor) -> None:
        pids = await pids_once_ready(harness, "a", "b")
        harness.supervisor.handle("a", PauseRequested())
        os.kill(pids["a"], signal.SIGKILL)
        await harness.until(BACKOFF, "a")
        harness.left = True

    async def still_paused(harness: RunningSupervisor) -> None:
        await harness.until(READY, "b")
        assert paused(harness, "a")
        assert harness.supervisor.snapshots()[0].pid is None
        harness.supervisor.handle("a", UnpauseRequested())
        await harness.until(READY, "a")

    supervised(posts, die_paused, journal=journal)
    supervised(posts, still_paused, journal=journal, entries=journal.read())


def test_a_pause_persists_across_a_stop_of_all_workers(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", logging.getLogger("test"))
    posts = [tiny_spec(tmp_path)]

    async def pause(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        harness.supervisor.handle("w", PauseRequested())

    async def still_paused(harness: RunningSupervisor) -> None:
        assert paused(harness, "w")
        assert harness.supervisor.snapshots()[0].pid is None

    supervised(posts, pause, journal=journal)
    supervised(posts, still_paused, journal=journal, entries=journal.read())


def test_a_pause_persists_while_its_worker_is_missing_from_the_node_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", logging.getLogger("test"))
    a, b = (tiny_spec(tmp_path, name=name) for name in "ab")

    async def pause(harness: RunningSupervisor) -> None:
        await pids_once_ready(harness, "a", "b")
        harness.supervisor.handle("a", PauseRequested())

    async def without_it(harness: RunningSupervisor) -> None:
        await harness.until(READY, "b")

    async def still_paused(harness: RunningSupervisor) -> None:
        await harness.until(READY, "b")
        assert paused(harness, "a")

    supervised([a, b], pause, journal=journal)
    supervised([b], without_it, journal=journal, entries=journal.read())
    supervised([a, b], still_paused, journal=journal, entries=journal.read())


def test_a_restart_waits_until_the_last_request_has_ended(tmp_path: Path) -> None:
    async def story(harness: RunningSupervisor) -> None:
        old = (await harness.until(READY)).pid
        harness.supervisor.handle("w", RestartRequested())
        await harness.until(DRAINING)
        busy = EnginePage("vllm", t_ns=2**62, running=1, waiting=0)
        harness.pages["w"] = busy
        assert old is not None
        assert procfs.is_alive(old)
        harness.pages["w"] = replace(busy, running=0)
        assert (await harness.until(STARTING)).pid != old
        await harness.until(READY)
        assert harness.supervisor.statuses()[0].restarts == 0

    supervised([tiny_spec(tmp_path, policy=replace(QUICK, drain_seconds=60))], story)


def test_a_failed_worker_is_started_by_a_requested_restart(tmp_path: Path) -> None:
    flag = tmp_path / "mended"
    script = f"import os, sys, runpy\nif not os.path.exists({str(flag)!r}): sys.exit(3)\n"
    spec = tiny_spec(tmp_path)
    *program, server, port, model = spec.command.argv
    mended = replace(spec.command, argv=(*program, script + server, port, model))

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(FAILED)
        flag.touch()
        harness.supervisor.handle("w", RestartRequested())
        await harness.until(READY)

    supervised([replace(spec, command=mended)], story)
