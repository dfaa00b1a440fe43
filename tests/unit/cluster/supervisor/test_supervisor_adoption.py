"""A supervisor adopts the workers that the supervisor before it left."""

import asyncio
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.reassignment.progress import Patience, Reassignment
from disagg_cluster.lifecycle.state import (
    Health,
    LaunchCommand,
    Lifecycle,
    Presence,
    RestartRequested,
    WorkerState,
)
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.journal.journal_text import Assignments, Entry
from disagg_cluster.supervisor.ownership import adoption
from disagg_cluster.supervisor.ownership.adoption import FoundProcess
from disagg_cluster.supervisor.process.child_process import start
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import Role
from support.children import PYTHON, SERVER, STUBBORN, is_gone, wait_readable
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
    tiny_spec,
)

BACKOFF_SECONDS = 0.2


class Written(Journal):
    """A journal that keeps all entries it was given."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, logging.getLogger("test"))
        self.pages: list[tuple[Entry, ...]] = []

    def write(self, entries: Sequence[Entry]) -> None:
        self.pages.append(tuple(entries))
        super().write(entries)


@pytest.fixture
def journal(tmp_path: Path) -> Written:
    return Written(tmp_path / "journal.json")


def leave_ready(posts: list[WorkerSpec], journal: Journal) -> dict[str, int]:
    """Let a supervisor start its workers and leave; return their pids."""
    pids: dict[str, int] = {}

    async def story(harness: RunningSupervisor) -> None:
        while len(pids) < len(posts):
            change = await harness.until(READY)
            assert change.pid is not None
            pids[change.worker] = change.pid
        harness.left = True

    supervised(posts, story, journal=journal)
    assert all(procfs.is_alive(pid) for pid in pids.values())
    return pids


def test_workers_run_on_and_the_next_supervisor_adopts_them(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    posts = [spec(name="a"), spec(name="b")]
    pids = leave_ready(posts, journal)

    async def story(harness: RunningSupervisor) -> None:
        adopted = [await harness.changes.get() for _ in posts]
        assert [(c.worker, c.old, c.new, c.pid) for c in adopted] == [
            (name, STOPPED, STARTING, pid) for name, pid in sorted(pids.items())
        ]
        for _ in posts:
            ready = await harness.until(READY)
            assert ready.pid == pids[ready.worker]
        assert [s.restarts for s in harness.supervisor.statuses()] == [0, 0]
        assert all(s.start_timestamp_seconds for s in harness.supervisor.statuses())

    supervised(posts, story, journal=journal, entries=journal.read())
    assert journal.read() == ()


def test_an_adopted_worker_that_dies_has_crashed_and_is_started_again(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    pids = leave_ready([worker := spec()], journal)

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        os.kill(pids["w"], signal.SIGKILL)
        assert "ended unasked" in (await harness.until(BACKOFF)).why
        assert (await harness.until(READY)).pid != pids["w"]
        assert harness.supervisor.statuses()[0].restarts == 1

    supervised([worker], story, journal=journal, entries=journal.read())


def test_the_restart_count_continues_across_an_adoption(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    worker = spec()

    async def crashes(harness: RunningSupervisor) -> None:
        first = await harness.until(READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await harness.until(BACKOFF)
        await harness.until(READY)
        harness.left = True

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        assert harness.supervisor.statuses()[0].restarts == 1

    supervised([worker], crashes, journal=journal)
    supervised([worker], story, journal=journal, entries=journal.read())


def test_a_worker_that_died_while_no_daemon_ran_is_restarted(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    pids = leave_ready([worker := spec()], journal)
    os.kill(pids["w"], signal.SIGKILL)
    assert is_gone(pids["w"])

    async def story(harness: RunningSupervisor) -> None:
        crash = await harness.until(BACKOFF)
        assert (crash.old, crash.pid) == (STOPPED, None)
        assert crash.why.startswith("ended while no daemon ran")
        assert (await harness.until(READY)).pid != pids["w"]

    supervised([worker], story, journal=journal, entries=journal.read())
    os.waitpid(pids["w"], os.WNOHANG)


def test_a_start_recorded_but_not_made_is_made_and_not_counted_as_a_crash(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    """The daemon died between its journal and the fork."""
    worker = spec()
    life = Lifecycle(
        WorkerState.STARTING, Presence.RUNNING, generation=4, restarts=3, consecutive_crashes=3
    )
    meant = worker.entry(procfs.now_ticks(), 0.0).model_copy(update={"life": life})

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        assert harness.supervisor.statuses()[0].restarts == 3

    supervised([worker], story, journal=journal, entries=[meant])
    assert {entry.life.crashes_ns for page in journal.pages for entry in page} == {()}


def test_leftovers_that_die_right_after_they_were_found_do_not_block_the_start(
    spec: Callable[..., WorkerSpec],
    journal: Written,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = spec()
    life = Lifecycle(WorkerState.READY, Presence.RUNNING, generation=4)
    entry = worker.entry(1, 0.0).model_copy(update={"life": life, "pid": 1})

    def find(_entry: Entry) -> FoundProcess:
        dead = start([*PYTHON, "pass"], dict(os.environ), worker.log_path)
        assert wait_readable(dead.pidfd)
        return FoundProcess(Presence.LEFTOVER, dead)

    monkeypatch.setattr("disagg_cluster.supervisor.supervisor.adoption.find", find)

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)

    supervised([worker], story, journal=journal, entries=[entry])


def test_a_worker_with_a_changed_command_runs_on_unchanged_until_its_restart(
    spec: Callable[..., WorkerSpec], journal: Written, caplog: pytest.LogCaptureFixture
) -> None:
    """Even on another port: it is probed where it is, until it is started again."""
    pids = leave_ready([worker := spec()], journal)
    other = spec()
    assert other.target.port != worker.target.port

    async def story(harness: RunningSupervisor) -> None:
        assert (await harness.until(READY)).pid == pids["w"]
        assert harness.supervisor.tag("w").port == worker.target.port
        assert "runs with another command than the node file's" in caplog.text

        os.kill(pids["w"], signal.SIGKILL)
        await harness.until(BACKOFF)
        assert harness.supervisor.tag("w").port == other.target.port
        await harness.until(READY)

    supervised([other], story, journal=journal, entries=journal.read())


def test_a_worker_removed_from_the_node_file_runs_on_until_it_is_stopped(
    spec: Callable[..., WorkerSpec], journal: Written, caplog: pytest.LogCaptureFixture
) -> None:
    posts = [spec(name="kept"), spec(name="dropped")]
    pids = leave_ready(posts, journal)

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        assert set(harness.supervisor.logs()) == {"kept", "dropped"}

    async def ends(harness: RunningSupervisor) -> None:
        assert [s.worker for s in harness.supervisor.statuses()] == ["dropped"]

    supervised(posts[:1], story, journal=journal, entries=journal.read())
    assert f"dropped is not in the node file and goes on without us (pid {pids['dropped']})" in (
        caplog.text
    )
    assert procfs.is_alive(pids["dropped"])
    assert [entry.worker for entry in journal.read()] == ["dropped"]

    supervised(posts[1:], ends, journal=journal, entries=journal.read(), wanted=False)
    assert not procfs.is_alive(pids["dropped"])
    assert journal.read() == ()


def test_undesired_workers_are_drained_and_stopped_and_never_started(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    stubborn = spec(name="b", policy=replace(QUICK, stop_seconds=0.1))
    argv = (*PYTHON, STUBBORN + SERVER, *stubborn.command.argv[-2:])
    posts = [spec(name="a"), replace(stubborn, command=LaunchCommand(argv, {})), spec(name="c")]
    pids = leave_ready(posts, journal)
    os.kill(pids["c"], signal.SIGKILL)
    assert is_gone(pids["c"])

    async def story(harness: RunningSupervisor) -> None:
        assert await harness.supervisor.stop() == ()
        changes = [harness.changes.get_nowait() for _ in range(harness.changes.qsize())]
        for name in "abc":
            states = [change.new for change in changes if change.worker == name]
            assert states == [DRAINING, STOPPED]

    supervised(posts, story, journal=journal, entries=journal.read(), wanted=False)
    assert not any(procfs.is_alive(pid) for pid in pids.values())
    os.waitpid(pids["c"], os.WNOHANG)


def test_a_worker_in_backoff_is_started_at_once_after_a_clean_handover(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    slow = spec("raise SystemExit(1)", policy=replace(QUICK, backoff_first_seconds=1000))

    async def crashes(harness: RunningSupervisor) -> None:
        await harness.until(BACKOFF)
        assert journal.read()[0].life.presence is Presence.GONE
        harness.left = True

    async def story(harness: RunningSupervisor) -> None:
        assert (await harness.changes.get()).new is STARTING

    supervised([slow], crashes, journal=journal)
    supervised([slow], story, journal=journal, entries=journal.read())


def test_a_supervisor_that_has_left_starts_no_worker(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    """Not even if the probe it waited for ended while a worker was in backoff."""
    asked, answer = threading.Event(), threading.Event()

    def slow(_target: ProbeTarget, _session: int, _seconds: float, _proven: object) -> ProbeResult:
        asked.set()
        answer.wait(20)
        return ProbeResult(Health.HEALTHY, "healthy")

    async def story(harness: RunningSupervisor) -> None:
        first = await harness.until(STARTING)
        assert first.pid is not None
        await asyncio.to_thread(asked.wait, 20)
        os.kill(first.pid, signal.SIGKILL)
        await harness.until(BACKOFF)
        harness.left = True
        leaving = asyncio.ensure_future(harness.supervisor.leave())
        await asyncio.sleep(0)
        answer.set()
        await leaving
        # Timers fire in order: by then its restart has been due.
        await asyncio.sleep(2 * BACKOFF_SECONDS)
        assert harness.seen() == []

    worker = spec(policy=replace(QUICK, backoff_first_seconds=BACKOFF_SECONDS))
    supervised([worker], story, probe=slow, journal=journal)


def test_a_backoff_continues_after_a_supervisor_that_did_not_leave_cleanly(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    slow = spec("raise SystemExit(1)", policy=replace(QUICK, backoff_first_seconds=1000))
    left: list[Entry] = []

    async def crashes(harness: RunningSupervisor) -> None:
        await harness.until(BACKOFF)
        left.extend(journal.read())

    async def story(harness: RunningSupervisor) -> None:
        assert (await harness.changes.get()).new is BACKOFF
        assert harness.seen() == []

    supervised([slow], crashes, journal=journal)
    supervised([slow], story, journal=journal, entries=left)


def test_no_worker_is_started_on_a_gpu_where_an_adopted_one_still_runs(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    """The node file has exchanged them: it waits, without a crash, until that is restarted."""
    before = replace(spec(name="a"), gpus=("g1",))
    pids = leave_ready([before], journal)
    moved, new = replace(before, gpus=("g2",)), replace(spec(name="b"), gpus=("g1",))

    async def story(harness: RunningSupervisor) -> None:
        refused = await harness.until(BACKOFF, "b")
        assert "a still runs on g1: disagg-node restart a moves it" in refused.why
        assert harness.supervisor.pid("a") == pids["a"]
        assert harness.supervisor.gpus_held() == {"g1": "a"}
        since_ns = harness.supervisor.life("b").since_ns
        await harness.until(BACKOFF, "b")
        assert harness.supervisor.life("b").since_ns == since_ns
        harness.supervisor.handle("a", RestartRequested())
        await harness.until(READY, "b")
        assert harness.supervisor.tag("a").gpus == ("g2",)
        assert harness.supervisor.life("b").crashes_ns == ()

    supervised([moved, new], story, journal=journal, entries=journal.read())


def test_a_worker_whose_port_one_of_an_earlier_node_file_has_says_which_and_the_way_out(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    before = spec(name="a")
    pids = leave_ready([before], journal)

    async def story(harness: RunningSupervisor) -> None:
        refused = await harness.until(BACKOFF, "b")
        assert f"another process listens on port {before.target.port}" in refused.why
        assert (
            f"; a still runs on port {before.target.port}, though the node file no longer names "
            f"it: end pid {pids['a']}" in refused.why
        )
        os.killpg(pids["a"], signal.SIGKILL)
        await harness.until(READY, "b")

    renamed = replace(spec(name="b"), command=before.command, target=before.target)
    supervised([renamed], story, journal=journal, entries=journal.read())


def test_a_worker_whose_port_another_still_has_is_told_to_restart_that(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    before, other = spec(name="a"), spec(name="b")
    leave_ready([before], journal)
    moved = replace(before, command=other.command, target=other.target)
    new = replace(other, command=before.command, target=before.target)

    async def story(harness: RunningSupervisor) -> None:
        refused = await harness.until(BACKOFF, "b")
        port = before.target.port
        assert f"; a still runs on port {port}: disagg-node restart a moves it" in refused.why
        harness.supervisor.handle("a", RestartRequested())
        await harness.until(READY, "b")

    supervised([moved, new], story, journal=journal, entries=journal.read())


def test_no_worker_is_started_on_a_gpu_of_one_that_the_node_file_no_longer_names(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    pids = leave_ready([replace(spec(name="a"), gpus=("g1",))], journal)

    async def story(harness: RunningSupervisor) -> None:
        assert harness.supervisor.gpus_held() == {"g1": "a"}
        refused = await harness.until(BACKOFF, "b")
        assert (
            f"a still runs on g1, though the node file no longer names it: end pid {pids['a']}"
            in (refused.why)
        )
        os.killpg(pids["a"], signal.SIGKILL)
        await harness.until(READY, "b")

    new = replace(spec(name="b"), gpus=("g1",))
    supervised([new], story, journal=journal, entries=journal.read())


@pytest.mark.parametrize(
    "bound",
    [
        Assignments(roles={"w": Role.PREFILL}),
        Assignments(drained=("w",)),
        Assignments(
            move=Reassignment("m", "w", Role.DECODE, Role.PREFILL, 1, 1, Patience(), beyond=1)
        ),
    ],
    ids=["role", "drain", "move"],
)
def test_a_worker_between_two_starts_keeps_role_drain_and_move_when_its_supervisor_leaves(
    spec: Callable[..., WorkerSpec], journal: Written, bound: Assignments
) -> None:
    """It is started at once, with its crashes forgiven, as one without any of these is."""
    slow = replace(QUICK, backoff_first_seconds=1000)
    posts = [spec("raise SystemExit(1)", name=name, policy=slow) for name in ("w", "other")]

    async def crashes(harness: RunningSupervisor) -> None:
        assert {(await harness.until(BACKOFF)).worker for _ in posts} == {"w", "other"}
        journal.assignments = bound
        harness.left = True

    supervised(posts, crashes, journal=journal)
    successor = Written(journal._path)
    [left] = successor.read()
    assert (left.worker, left.life.consecutive_crashes, left.life.generation) == ("w", 0, 1)
    assert successor.assignments == bound

    async def story(harness: RunningSupervisor) -> None:
        assert {(await harness.until(STARTING)).worker for _ in posts} == {"w", "other"}

    supervised(posts, story, journal=successor, entries=[left])


def test_a_failed_worker_stays_failed_under_the_next_supervisor(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    """Its cause is reported as far as it is known: the journal does not hold the text."""
    bad = spec("print('no memory'); raise SystemExit(1)", policy=replace(QUICK, crash_limit=1))
    left: list[Entry] = []

    async def fails(harness: RunningSupervisor) -> None:
        await harness.until(FAILED)
        left.extend(journal.read())

    async def story(harness: RunningSupervisor) -> None:
        assert (await harness.changes.get()).new is FAILED
        [status], [snapshot] = harness.supervisor.statuses(), harness.supervisor.snapshots()
        assert status.state == "failed"
        assert status.cause == snapshot.reason == "it crashed under the daemon before"
        assert status.last_lines == ("no memory",)

    supervised([bad], fails, journal=journal)
    supervised([bad], story, journal=journal, entries=left)


def test_without_a_journal_a_worker_is_adopted_by_its_log_and_arguments(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    pids = leave_ready([worker := spec()], journal)

    async def story(harness: RunningSupervisor) -> None:
        assert (await harness.until(READY)).pid == pids["w"]
        started = harness.supervisor.statuses()[0].start_timestamp_seconds
        assert started is not None

    supervised([worker], story, journal=journal, entries=())


def test_each_action_is_recorded_in_the_journal_before_it_is_taken(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    """A daemon started after one that died between the two still finds the process."""

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        await harness.supervisor.stop()

    supervised([spec()], story, journal=journal)
    steps = [
        (entry.life.state, entry.life.presence, entry.pid is not None, entry.life.last_signal)
        for entry in (page[0] for page in journal.pages)
    ]
    running, gone = Presence.RUNNING, Presence.GONE
    assert list(dict.fromkeys(steps)) == [
        (WorkerState.STARTING, running, False, None),
        (WorkerState.STARTING, running, True, None),
        (WorkerState.READY, running, True, None),
        (WorkerState.DRAINING, running, True, signal.SIGTERM),
        (WorkerState.STOPPED, gone, False, signal.SIGTERM),
    ]
    meant = journal.pages[0][0]
    real = journal.pages[1][0]
    assert meant.start_ticks <= real.start_ticks <= meant.start_ticks + 200


def test_a_start_recorded_without_a_pid_is_adopted(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    pids = leave_ready([worker := spec()], journal)
    meant = journal.pages[0]
    assert meant[0].pid is None

    async def story(harness: RunningSupervisor) -> None:
        assert (await harness.until(READY)).pid == pids["w"]

    supervised([worker], story, journal=journal, entries=meant)


def test_an_adopted_start_is_recorded_with_the_start_of_its_process(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    """The next daemon compares both; the planned start is from before the fork."""
    pids = leave_ready([worker := spec()], journal)
    meant = [each.model_copy(update={"start_ticks": 1}) for each in journal.pages[0]]

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        [entry] = journal.read()
        assert (entry.pid, entry.start_ticks) == (pids["w"], procfs.start_ticks(pids["w"]))

    supervised([worker], story, journal=journal, entries=meant)


def test_the_journal_keeps_all_workers_during_an_adoption(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    posts = [spec(name=name) for name in "abc"]
    leave_ready(posts, journal)
    journal.pages.clear()

    async def story(harness: RunningSupervisor) -> None:
        assert {len(page) for page in journal.pages} == {3}

    supervised(posts, story, journal=journal, entries=journal.read())


def test_a_failed_search_for_a_worker_keeps_its_journal_entry(
    spec: Callable[..., WorkerSpec], journal: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_ready([worker := spec()], journal)
    text = journal.read()

    async def story() -> None:
        supervisor = Supervisor([worker], lambda *_: None, lambda _worker: None, journal=journal)
        with monkeypatch.context() as patch:
            patch.setattr(adoption, "find", lambda _entry: Path("/nowhere").readlink())
            with pytest.raises(FileNotFoundError):
                supervisor.adopt(text)
        await supervisor.leave()
        assert journal.read() == text

    asyncio.run(story())
    supervised([worker], _nothing, journal=journal, entries=text)


async def _nothing(_ship: RunningSupervisor) -> None:
    pass


def test_a_supervisor_that_has_not_adopted_yet_does_not_overwrite_the_journal(
    spec: Callable[..., WorkerSpec], journal: Written
) -> None:
    leave_ready([worker := spec()], journal)
    text = journal.read()
    assert len(text) == 1

    async def story() -> None:
        supervisor = Supervisor([worker], lambda *_: None, lambda _worker: None, journal=journal)
        supervisor.record()
        assert journal.read() == text
        supervisor.adopt(text, wanted=False)
        await supervisor.stop()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["adopted", "about to be started"])
def test_an_engine_with_a_deleted_run_folder_is_adopted_and_not_started_again(
    tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    worker = tiny_spec(folder / "logs")
    pids = leave_ready([worker], Written(folder / "journal.json"))
    shutil.rmtree(folder)
    (folder / "logs").mkdir(parents=True)

    async def story(harness: RunningSupervisor) -> None:
        ready = await harness.until(READY)
        assert ready.pid == pids["w"]
        assert [status.restarts for status in harness.supervisor.statuses()] == [0]

    journal = Written(folder / "journal.json")
    supervised([worker], story, journal=journal, entries=() if how == "adopted" else None)
    assert is_gone(pids["w"], 0)
