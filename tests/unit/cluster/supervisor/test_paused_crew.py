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
from support.crews import (
    BACKOFF,
    DRAINING,
    FAILED,
    QUICK,
    READY,
    STARTING,
    Bridge,
    aboard,
    tiny_post,
)


async def pids_once_ready(ship: Bridge, *workers: str) -> dict[str, int]:
    pids: dict[str, int] = {}
    while set(pids) != set(workers):
        change = await ship.until(READY)
        assert change.pid is not None
        pids[change.worker] = change.pid
    return pids


def paused(ship: Bridge, worker: str) -> bool:
    return next(s.paused for s in ship.crew.statuses() if s.worker == worker)


def test_a_paused_worker_that_is_stopped_by_a_signal_lives_while_another_is_killed_for_it(
    tmp_path: Path,
) -> None:
    async def story(ship: Bridge) -> None:
        pids = await pids_once_ready(ship, "a", "b")
        ship.crew.tell("a", PauseRequested())
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        killed = await ship.until(BACKOFF, "b")
        assert "hangs" in killed.why
        await ship.until(READY, "b")

        assert procfs.is_alive(pids["a"])
        os.kill(pids["a"], signal.SIGCONT)
        ship.crew.tell("a", UnpauseRequested())
        assert not paused(ship, "a")
        assert ship.crew.standings()[0].pid == pids["a"]

    posts = [tiny_post(tmp_path, name=name) for name in "ab"]
    aboard(posts, story, probe_seconds=0.2)


def test_a_paused_worker_that_died_is_told_and_started_when_the_pause_ends(tmp_path: Path) -> None:
    async def story(ship: Bridge) -> None:
        pids = await pids_once_ready(ship, "a", "b")
        ship.crew.tell("a", PauseRequested())
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        died = await ship.until(BACKOFF, "a")
        assert "ended unasked by signal 9" in died.why
        assert died.pid is None
        await ship.until(READY, "b")  # whose back-off began later than that of `a`
        assert ship.crew.standings()[0].pid is None

        ship.crew.tell("a", UnpauseRequested())
        await ship.until(READY, "a")
        assert ship.crew.statuses()[0].restarts == 1

    aboard([tiny_post(tmp_path, name=name) for name in "ab"], story)


def test_a_pause_is_in_the_journal_also_of_a_worker_that_has_gone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", logging.getLogger("test"))
    posts = [tiny_post(tmp_path, name=name) for name in "ab"]

    async def die_paused(ship: Bridge) -> None:
        pids = await pids_once_ready(ship, "a", "b")
        ship.crew.tell("a", PauseRequested())
        os.kill(pids["a"], signal.SIGKILL)
        await ship.until(BACKOFF, "a")
        ship.left = True

    async def still_paused(ship: Bridge) -> None:
        await ship.until(READY, "b")
        assert paused(ship, "a")
        assert ship.crew.standings()[0].pid is None
        ship.crew.tell("a", UnpauseRequested())
        await ship.until(READY, "a")

    aboard(posts, die_paused, journal=journal)
    aboard(posts, still_paused, journal=journal, entries=journal.read())


def test_a_pause_outlasts_a_stop_of_the_whole_crew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", logging.getLogger("test"))
    posts = [tiny_post(tmp_path)]

    async def pause(ship: Bridge) -> None:
        await ship.until(READY)
        ship.crew.tell("w", PauseRequested())

    async def still_paused(ship: Bridge) -> None:
        assert paused(ship, "w")
        assert ship.crew.standings()[0].pid is None

    aboard(posts, pause, journal=journal)
    aboard(posts, still_paused, journal=journal, entries=journal.read())


def test_a_pause_waits_for_a_node_file_that_names_its_worker_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", logging.getLogger("test"))
    a, b = (tiny_post(tmp_path, name=name) for name in "ab")

    async def pause(ship: Bridge) -> None:
        await pids_once_ready(ship, "a", "b")
        ship.crew.tell("a", PauseRequested())

    async def without_it(ship: Bridge) -> None:
        await ship.until(READY, "b")

    async def still_paused(ship: Bridge) -> None:
        await ship.until(READY, "b")
        assert paused(ship, "a")

    aboard([a, b], pause, journal=journal)
    aboard([b], without_it, journal=journal, entries=journal.read())
    aboard([a, b], still_paused, journal=journal, entries=journal.read())


def test_a_restart_waits_until_the_last_request_has_ended(tmp_path: Path) -> None:
    async def story(ship: Bridge) -> None:
        old = (await ship.until(READY)).pid
        ship.crew.tell("w", RestartRequested())
        await ship.until(DRAINING)
        busy = EnginePage("vllm", t_ns=2**62, running=1, waiting=0)
        ship.pages["w"] = busy
        assert old is not None
        assert procfs.is_alive(old)
        ship.pages["w"] = replace(busy, running=0)
        assert (await ship.until(STARTING)).pid != old
        await ship.until(READY)
        assert ship.crew.statuses()[0].restarts == 0

    aboard([tiny_post(tmp_path, policy=replace(QUICK, drain_seconds=60))], story)


def test_a_worker_that_was_given_up_is_started_by_a_restart(tmp_path: Path) -> None:
    flag = tmp_path / "mended"
    script = f"import os, sys, runpy\nif not os.path.exists({str(flag)!r}): sys.exit(3)\n"
    post = tiny_post(tmp_path)
    *program, server, port, model = post.command.argv
    mended = replace(post.command, argv=(*program, script + server, port, model))

    async def story(ship: Bridge) -> None:
        await ship.until(FAILED)
        flag.touch()
        ship.crew.tell("w", RestartRequested())
        await ship.until(READY)

    aboard([replace(post, command=mended)], story)
