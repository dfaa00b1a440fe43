"""Workers that outlived their daemon are ended by the journal, and by nothing else."""

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.stop import stop
from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.daemon.stop import end_daemon, end_workers, left_behind, unnamed
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock
from disagg_cluster.lifecycle.state import PauseRequested
from disagg_cluster.supervisor.journal.journal import Journal
from disagg_cluster.supervisor.ownership import run_folders as unrecorded_workers
from disagg_cluster.supervisor.ownership.run_folders import unrecorded
from disagg_cluster.supervisor.process.child_process import start
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from support.children import PYTHON, LinePipe, is_gone, wait_readable
from support.supervisors import BACKOFF, READY, RunningSupervisor, supervised, tiny_spec


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    with RunLock(folder.lock):
        (folder.path / "logs").mkdir()
    return folder


def leave(folder: RunFolder, *posts: WorkerSpec) -> dict[str, int]:
    """Let a supervisor bring workers up and go; their pids."""
    pids: dict[str, int] = {}

    async def story(harness: RunningSupervisor) -> None:
        while len(pids) < len(posts):
            change = await harness.until(READY)
            assert change.pid is not None
            pids[change.worker] = change.pid
        harness.left = True

    journal = Journal(folder.journal, logging.getLogger("test"))
    supervised(list(posts), story, journal=journal)
    return pids


@pytest.fixture
def stranger(folder: RunFolder) -> Iterator[int]:
    """A process that writes a worker's log and is in no journal."""
    argv = [*PYTHON, "import signal; signal.pause()"]
    child = start(argv, dict(os.environ), folder.log("w"))
    yield child.pid
    child.signal_group(signal.SIGKILL)
    assert wait_readable(child.pidfd)
    child.reap()


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(stop, arguments)
    return done.exit_code, done.stdout, done.stderr


def test_a_router_is_ended_before_the_engines_are_drained(
    folder: RunFolder, tmp_path: Path
) -> None:
    router = replace(tiny_spec(folder.path, name="router"), in_front=True)
    pids = leave(folder, tiny_spec(folder.path, name="engine"), router)
    said: list[str] = []

    ended = end_workers(folder, said.append)

    assert [(each.name, each.pid, each.ended) for each in ended] == [
        ("router", pids["router"], True),
        ("engine", pids["engine"], True),
    ]
    assert [line.partition(",")[0] for line in said] == [
        f"router (pid {pids['router']}): draining",
        "router: stopped",
        f"engine (pid {pids['engine']}): draining",
        "engine: stopped",
    ]
    assert left_behind(folder) == ()
    assert not any(procfs.is_alive(pid) for pid in pids.values())


def test_a_stop_without_a_daemon_keeps_pauses_also_of_ended_workers(
    folder: RunFolder, tmp_path: Path
) -> None:
    posts = tiny_spec(folder.path, name="gone"), tiny_spec(folder.path, name="stays")
    journal = Journal(folder.journal, logging.getLogger("test"))

    async def story(harness: RunningSupervisor) -> None:
        pids = {}
        while len(pids) < len(posts):
            change = await harness.until(READY)
            pids[change.worker] = change.pid
        for worker in pids:
            harness.supervisor.handle(worker, PauseRequested())
        assert pids["gone"] is not None
        os.kill(pids["gone"], signal.SIGKILL)
        await harness.until(BACKOFF, "gone")
        harness.left = True

    supervised(list(posts), story, journal=journal)
    (ended,) = end_workers(folder, lambda _text: None)

    assert ended.name == "stays"
    assert {e.worker for e in journal.read() if e.life.paused_ns is not None} == {"gone", "stays"}


def test_without_a_daemon_and_without_workers_there_is_nothing_to_do(
    folder: RunFolder, tmp_path: Path
) -> None:
    assert end_daemon(folder, pytest.fail) is None
    assert end_workers(folder, pytest.fail) == ()
    assert run("--workers", "--run-dir", str(folder.path)) == (
        0,
        f"nothing runs in {folder.path}\n",
        "",
    )

    nowhere = tmp_path / "nowhere"
    assert run("--workers", "--run-dir", str(nowhere))[0] == 0
    assert not nowhere.exists()


def test_a_process_in_no_journal_is_reported_and_left_running(
    folder: RunFolder, stranger: int
) -> None:
    assert unnamed(folder, []) == (("w", stranger),)
    assert unnamed(folder, [stranger]) == ()

    code, out, err = run("--workers", "--run-dir", str(folder.path))
    assert (code, out) == (1, "")
    assert err == (
        f"pid {stranger} writes the log of w, but no journal names it: it is left alone\n"
    )
    assert procfs.is_alive(stranger)


@pytest.mark.parametrize("lost", ["journal", "folder"])
def test_workers_whose_journal_is_lost_are_reported_and_ended(
    folder: RunFolder, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Their pages report no requests, and their deadlines are unknown.
    monkeypatch.setattr(unrecorded_workers, "_USUAL", RestartPolicy(drain_seconds=0.2))
    pids = leave(folder, replace(tiny_spec(folder.path), log_path=folder.log("w")))
    folder.journal.unlink() if lost == "journal" else shutil.rmtree(folder.path)

    code, _, err = run("--run-dir", str(folder.path))
    assert code == 1
    assert f"pid {pids['w']} writes the log of w" in err
    assert "--workers ends it" in err

    code, _, err = run("--run-dir", str(folder.path), "--workers")
    assert f"w (pid {pids['w']}): no journal names it, and it is ours" in err
    assert code == 0
    assert is_gone(pids["w"], 0)


def test_a_helper_that_outlived_its_worker_and_its_journal_is_ended(
    folder: RunFolder, tmp_path: Path
) -> None:
    pipe = LinePipe(tmp_path)
    script = (
        "import os, signal, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.dup2(os.open('/dev/null', os.O_WRONLY), 1)\n"
        "    print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True)\n"
        "    signal.pause()\n"
    )
    environment = os.environ | {WORKER_MARK: str(folder.log("w"))}
    child = start([*PYTHON, script, str(pipe.path)], environment, folder.log("w"))
    helper = int(pipe.line())
    pipe.close()
    assert wait_readable(child.pidfd)
    os.waitpid(child.pid, 0)
    child.let_go()

    assert [found.pid for found in unrecorded(folder)] == [helper]
    code, _, _ = run("--run-dir", str(folder.path), "--workers")
    assert code == 0
    assert is_gone(helper, 0)


def test_the_daemon_of_a_deleted_run_folder_is_found_and_stopped(
    folder: RunFolder, tmp_path: Path
) -> None:
    pipe = LinePipe(tmp_path)
    holds = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from disagg_cluster.host.run_dir.lock import RunLock\n"
        "with RunLock(Path(sys.argv[1])):\n"
        "    print('held', file=open(sys.argv[2], 'w'), flush=True)\n"
        "    signal.sigwait([signal.SIGINT])\n"
    )
    holds = "import signal\nsignal.pthread_sigmask(0, [signal.SIGINT])\n" + holds
    argv = [PYTHON[0], "-c", holds, str(folder.lock), str(pipe.path)]
    child = start(argv, dict(os.environ), tmp_path / "daemon.log")
    try:
        assert pipe.line() == "held"
        shutil.rmtree(folder.path)
        outcome = end_daemon(folder, lambda _text: None)
        assert outcome is not None
        assert (outcome.pid, outcome.ended) == (child.pid, True)
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
        child.reap()
        pipe.close()


def test_workers_still_running_are_reported_if_only_the_daemon_is_stopped(
    folder: RunFolder, tmp_path: Path
) -> None:
    pids = leave(folder, tiny_spec(folder.path))

    code, out, err = run("--run-dir", str(folder.path))
    assert (code, out, err) == (1, "", f"w (pid {pids['w']}): still runs; --workers ends it\n")
    code, out, _ = run("--run-dir", str(folder.path), "--workers", "--json")
    assert code == 0
    assert json.loads(out)["workers"] == [{"worker": "w", "pid": pids["w"], "ended": True}]


def test_the_wait_for_a_daemon_that_does_not_end_is_limited(
    folder: RunFolder, tmp_path: Path
) -> None:
    pipe = LinePipe(tmp_path)
    holds = (
        "import signal, sys, time\nfrom pathlib import Path\n"
        "from disagg_cluster.host.run_dir.lock import RunLock\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "with RunLock(Path(sys.argv[1])):\n"
        "    print('held', file=open(sys.argv[2], 'w'), flush=True)\n"
        "    signal.pause()\n"
    )
    argv = [PYTHON[0], "-c", holds, str(folder.lock), str(pipe.path)]
    child = start(argv, dict(os.environ), tmp_path / "daemon.log")
    said: list[str] = []
    try:
        assert pipe.line() == "held"
        outcome = end_daemon(folder, said.append, patience_seconds=0.1)
    finally:
        child.signal_group(signal.SIGKILL)
        assert wait_readable(child.pidfd)
        child.reap()
        pipe.close()

    assert outcome is not None
    assert (outcome.pid, outcome.ended) == (child.pid, False)
    assert said == [
        f"daemon (pid {child.pid}): asked to stop",
        f"daemon (pid {child.pid}): is still there",
    ]


def test_config_and_run_dir_together_are_bad_usage(tmp_path: Path) -> None:
    code, _, err = run("--run-dir", str(tmp_path), "-c", "node.yaml")

    assert code == 2
    assert "say either --config or --run-dir" in err
