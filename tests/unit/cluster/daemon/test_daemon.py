"""The daemon's own end, planned or not, and what it means to the engines."""

import asyncio
import gc
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.config.layout import place
from disagg_cluster.continuity.succession import Succession
from disagg_cluster.daemon import main_loop
from disagg_cluster.daemon.daemon import AtEnd, Daemon
from disagg_cluster.daemon.foreground import run
from disagg_cluster.daemon.stop import end_workers, left_behind
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.run_dir import watch
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock, RunLockError, holder
from disagg_cluster.host.worker_logs import Rotation
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.supervisor.journal.journal import here, load
from disagg_cluster.telemetry.snapshot import STALE_SECONDS
from disagg_cluster.telemetry.source_selection import SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.collectors import Backoff, keep_running
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.model import EngineStatus, Role, Snapshot
from disagg_exporter.steps import listener
from support.children import PYTHON, SERVER, children, free_port
from support.node_files import gpu

ARGUMENTS = "import sys\nsaid = lambda name: sys.argv[sys.argv.index(name) + 1]\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets allow 107 bytes.

    A test that fails may have left its worker; the journal that knows it goes with the folder.
    """
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield Path(name)
        left = end_workers(RunFolder(Path(name) / "run"), lambda _text: None)
        assert left == ()


def node_file(folder: Path, role: str = "mixed") -> dict[str, Any]:
    """A node with one tiny worker."""
    serves = SERVER.replace("sys.argv[1]", "said('--port')")
    serves = serves.replace("sys.argv[2]", "said('--served-model-name')")
    program = folder / "engine"
    program.write_text(f"#!{PYTHON[0]} -SE\n{ARGUMENTS}{serves}")
    program.chmod(0o755)
    worker = {"name": "w", "role": role, "model": "tiny", "port": free_port()}
    return {
        "devices": "cpu",
        "listen": {"metrics": "127.0.0.1:0"},
        "intervals": {"health_seconds": 0.05},
        "workers": [{**worker, "python": str(program), "deadlines": {"drain_seconds": 0.1}}],
    }


def make(folder: Path, on_failure: AtEnd = "leave", role: str = "mixed", **changes: Any) -> Daemon:
    """A daemon over one tiny worker."""
    config = from_mapping(node_file(folder, role) | changes, "node.yaml")
    source = NoDevices()
    layout = place(config, source.inventory())
    return Daemon(config, layout, source, folder / "run", on_failure=on_failure)


async def until_ready(daemon: Daemon, folder: Path) -> int:
    """Wait for the worker; its pid."""
    async with asyncio.timeout(20):
        while not daemon.ready:
            await asyncio.sleep(0.02)
    [entry] = load(RunFolder(folder / "run").journal, here())
    assert entry.pid is not None
    return entry.pid


def end(folder: Path) -> None:
    """End the worker that a daemon has left."""
    [entry] = load(RunFolder(folder / "run").journal, here())
    [ended] = end_workers(RunFolder(folder / "run"), lambda _text: None)
    assert ended.ended
    assert entry.pid not in children()


def test_a_planned_shutdown_stops_the_engines(folder: Path) -> None:
    async def story() -> int:
        daemon = make(folder)
        async with daemon.running():
            return await until_ready(daemon, folder)

    assert not procfs.is_alive(asyncio.run(story()))
    assert left_behind(RunFolder(folder / "run")) == ()


def test_a_daemon_told_to_leave_its_engines_leaves_them_running(folder: Path) -> None:
    async def story() -> int:
        daemon = make(folder)
        async with daemon.running():
            daemon.leave()
            return await until_ready(daemon, folder)

    assert procfs.is_alive(asyncio.run(story()))
    end(folder)


@pytest.mark.parametrize(("on_failure", "lives"), [("leave", True), ("stop", False)])
def test_a_failing_daemon_stops_or_leaves_its_engines_as_configured(
    folder: Path, on_failure: AtEnd, lives: bool
) -> None:
    pids: list[int] = []

    async def story() -> None:
        daemon = make(folder, on_failure)
        async with daemon.running():
            pids.append(await until_ready(daemon, folder))
            raise RuntimeError("a bug of ours")

    with pytest.raises(RuntimeError, match="a bug of ours"):
        asyncio.run(story())
    assert procfs.is_alive(pids[0]) is lives
    if lives:
        end(folder)


@pytest.mark.parametrize("removed", ["folder", "lock", "journal.json", "logs", "w.sock"])
def test_a_deleted_run_folder_is_restored_and_the_next_daemon_adopts_the_worker(
    folder: Path, removed: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.05)
    run_folder = RunFolder(folder / "run")
    victim = run_folder.path / ("" if removed == "folder" else removed)

    async def first() -> int:
        daemon = make(folder)
        async with daemon.running():
            pid = await until_ready(daemon, folder)
            shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
            everything = (
                run_folder.lock,
                run_folder.journal,
                run_folder.whereabouts,
                run_folder.logs,
                run_folder.sim,
                run_folder.socket("w"),
            )
            async with asyncio.timeout(20):
                while not all(path.exists() for path in everything):
                    await asyncio.sleep(0.02)
            assert holder(run_folder.lock) == os.getpid()
            assert load(run_folder.journal, here())[0].pid == pid
            with pytest.raises(RunLockError), RunLock(run_folder.lock, patience_seconds=0):
                pass
            daemon.leave()
            return pid

    async def second() -> int:
        daemon = make(folder)
        async with daemon.running():
            return await until_ready(daemon, folder)

    pid = asyncio.run(first())
    assert "recreated" in caplog.text
    assert asyncio.run(second()) == pid
    assert not procfs.is_alive(pid)


def test_a_daemon_in_a_new_run_folder_restores_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        daemon = make(folder, workers=[])
        async with daemon.running():
            async with asyncio.timeout(20):
                while daemon.snapshot is None:
                    await asyncio.sleep(0.02)
            assert daemon.snapshot.daemon_counts.run_folder_restores == 0

    asyncio.run(story())
    assert "recreated" not in caplog.text


def test_a_daemon_that_dies_before_resuming_leaves_the_lock_to_its_predecessor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is not resumed if the lock names another daemon than it does."""
    lock = RunFolder(folder / "run").lock
    with RunLock(lock):
        pass
    lock.write_text("4711 99\n")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Succession, "resume", die)

    async def story() -> None:
        async with make(folder).running():
            pass

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(story())
    assert lock.read_text() == "4711 99\n"


def test_an_adopted_engine_keeps_the_role_it_was_started_with(folder: Path) -> None:
    """Another role in the node file does not change the running process."""

    async def first() -> int:
        daemon = make(folder)
        async with daemon.running():
            daemon.leave()
            return await until_ready(daemon, folder)

    async def second() -> EngineStatus:
        daemon = make(folder, role="encode")
        async with daemon.running():
            assert await until_ready(daemon, folder) == pid
            while daemon.snapshot is None or not daemon.snapshot.engines[0].up:
                await asyncio.sleep(0.02)
            return daemon.snapshot.engines[0]

    pid = asyncio.run(first())
    assert asyncio.run(second()).role is Role.MIXED
    assert not procfs.is_alive(pid)


@pytest.mark.parametrize(
    ("on_sigterm", "sign", "lives"),
    [
        ("stop", signal.SIGTERM, False),
        ("leave", signal.SIGTERM, True),
        ("leave", signal.SIGINT, False),
    ],
)
def test_sigterm_stops_or_leaves_engines_as_configured_and_sigint_stops_them(
    folder: Path, on_sigterm: str, sign: signal.Signals, lives: bool
) -> None:
    async def story() -> int:
        daemon = make(folder, on_sigterm=on_sigterm)
        serving = asyncio.create_task(run(daemon, lambda _snapshot: None))
        pid = await until_ready(daemon, folder)
        os.kill(os.getpid(), sign)
        await serving
        return pid

    assert procfs.is_alive(asyncio.run(story())) is lives
    if lives:
        end(folder)


@pytest.mark.parametrize("left", [False, True])
def test_a_sigterm_before_startup_ends_left_workers_and_starts_none(
    folder: Path, left: bool
) -> None:
    """As an init may do: the signal is blocked until the daemon handles it."""

    async def first() -> int:
        daemon = make(folder)
        async with daemon.running():
            daemon.leave()
            return await until_ready(daemon, folder)

    pid = asyncio.run(first()) if left else None
    file = folder / "node.json"
    file.write_text(json.dumps(node_file(folder) | {"run_dir": str(folder / "run")}))
    argv = [sys.executable, "-m", "disagg_cluster.cli", "start", "-c", str(file), "--quiet"]
    with (folder / "said").open("wb") as said:
        output = [(os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        blocked = (signal.SIGTERM,)
        daemon = os.posix_spawn(argv[0], argv, os.environ, setsigmask=blocked, file_actions=output)
    os.kill(daemon, signal.SIGTERM)

    assert os.waitstatus_to_exitcode(os.waitpid(daemon, 0)[1]) == 0
    assert pid is None or not procfs.is_alive(pid)
    assert "start 1" not in (folder / "said").read_text()


@pytest.mark.parametrize("ends", [False, True])
def test_sighup_ends_a_daemon_only_if_so_configured(folder: Path, ends: bool) -> None:
    async def story() -> bool:
        daemon = make(folder)
        serving = asyncio.create_task(run(daemon, lambda _snapshot: None, hangup_ends=ends))
        await until_ready(daemon, folder)
        os.kill(os.getpid(), signal.SIGHUP)
        ended, _ = await asyncio.wait([serving], timeout=20 if ends else 0.5)
        if not ended:
            os.kill(os.getpid(), signal.SIGINT)
            await serving
        return bool(ended)

    assert asyncio.run(story()) is ends


def test_a_closed_terminal_does_not_end_the_daemon(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(_snapshot: Snapshot) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    async def story() -> None:
        daemon = make(folder)
        serving = asyncio.create_task(run(daemon, gone, seconds=1.5))
        await until_ready(daemon, folder)
        await serving

    asyncio.run(story())
    assert caplog.text.count("no more lines are printed") == 1


def test_the_garbage_collection_threshold_is_raised_while_a_daemon_runs(
    folder: Path,
) -> None:
    async def story() -> int:
        daemon = make(folder)
        serving = asyncio.create_task(run(daemon, lambda _snapshot: None, seconds=0.1))
        await until_ready(daemon, folder)
        meanwhile = gc.get_threshold()[0]
        await serving
        return meanwhile

    before = gc.get_threshold()

    assert asyncio.run(story()) > 10 * before[0]
    assert gc.get_threshold() == before


def test_no_daemon_follows_for_new_gpus_where_workers_run_on_what_there_was(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> bool:
        daemon, found = make(folder), asyncio.Event()

        async def gpus() -> str:
            await found.wait()
            return "GPUs can be read now"

        running = run(daemon, lambda _snapshot: None, seconds=0.5, outdated=gpus)
        serving = asyncio.create_task(running)
        await until_ready(daemon, folder)
        found.set()
        return await serving

    caplog.set_level("INFO")

    assert not asyncio.run(story())
    assert "GPUs can be read now: not used before the next start" in caplog.text


def test_an_engine_whose_source_fails_is_named_and_the_node_is_accounted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    advanced, advance = asyncio.Semaphore(0), Ledger.advance

    def trip(*_arguments: object) -> None:
        raise OverflowError("2 ** 64")

    def advance_and_count(self: Ledger, now_ns: int) -> None:
        advance(self, now_ns)
        advanced.release()

    async def story() -> Snapshot | None:
        daemon = make(folder)
        async with asyncio.timeout(30), daemon.running():
            await until_ready(daemon, folder)
            monkeypatch.setattr(SourceSelection, "_select", trip)
            monkeypatch.setattr(Ledger, "advance", advance_and_count)
            for _ in range(3):
                await advanced.acquire()
            return daemon.snapshot

    with caplog.at_level(logging.WARNING):
        snapshot = asyncio.run(story())
    assert snapshot is not None
    [accounting] = [each for each in snapshot.collectors if each.collector == "accounting"]
    assert not accounting.success
    assert accounting.unexpected_failures > 0
    assert f"{snapshot.engines[0].engine}: it fails with OverflowError" in caplog.text


def test_a_failing_part_fails_its_collector_and_ends_no_daemon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts fail at once, and then recover."""
    quickly = partial(keep_running, backoff=Backoff(0.02), steady_seconds=0.05)
    monkeypatch.setattr("disagg_cluster.daemon.main_loop.keep_running", quickly)
    monkeypatch.setattr(
        "disagg_cluster.daemon.composition.Rotation", partial(Rotation, every_seconds=0.05)
    )
    monkeypatch.setattr("disagg_cluster.daemon.main_loop.TICK_SECONDS", 0.05)

    def trip(*_arguments: object, **_named: object) -> object:
        raise ValueError("a bug of ours")

    failing = {
        "cpu": "disagg_exporter.devices.source.NoDevices.sweep",
        "accounting": "disagg_exporter.accounting.Ledger.advance",
        "capacity": "disagg_exporter.capacity.CapacityModel.advance",
        "snapshot": "disagg_cluster.daemon.main_loop.compose",
        "upkeep": "disagg_cluster.telemetry.launched_engines.LaunchedEngines.check_step_silence",
        "journal": "disagg_cluster.supervisor.journal.journal.encode",
        "log_rotation": "disagg_cluster.host.worker_logs.rotate",
        "worker_changes": "disagg_cluster.telemetry.launched_engines.LaunchedEngines.changed",
        "task:pages": "disagg_cluster.telemetry.pages.page_scraper.PageScraper._forget_gone",
        "discovery:listed": "disagg_cluster.discovery.finders.declared.ListedFinder.scan",
        "discovery": "disagg_cluster.discovery.discovery_loop.merge_observations",
        "task:fpm": "disagg_cluster.discovery.attached.attached_fpm.AttachedFpm.follow",
    }

    def shown(daemon: Daemon) -> dict[str, bool]:
        collectors = daemon.snapshot.collectors if daemon.snapshot else ()
        return {c.collector: c.success for c in collectors}

    async def until(daemon: Daemon, names: Iterable[str], success: bool) -> None:
        async with asyncio.timeout(30):
            while any(shown(daemon).get(name) is not success for name in names):
                await asyncio.sleep(0.02)

    async def story() -> None:
        daemon = make(folder, attach={"processes": False, "kubernetes": "never"})
        serving = asyncio.create_task(run(daemon, lambda _snapshot: None, seconds=1e6))
        pid = await until_ready(daemon, folder)
        with monkeypatch.context() as broken:
            for function in failing.values():
                broken.setattr(function, trip)
            os.kill(pid, signal.SIGKILL)
            await until(daemon, failing, success=False)
            assert not serving.done()
        await until(daemon, failing, success=True)
        async with asyncio.timeout(30):
            while not any(e.up and e.pid != pid for e in daemon.snapshot.engines):  # type: ignore[union-attr]
                await asyncio.sleep(0.02)
        assert not serving.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

    asyncio.run(story())


def test_accounts_are_frozen_and_become_stale_while_a_checkpoint_is_stuck(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next daemon resumes from the older one and would count newer seconds twice."""
    monkeypatch.setattr(main_loop, "TICK_SECONDS", 0.02)
    refused, save, is_stuck = asyncio.Semaphore(0), Succession.save, False

    def save_or_not(self: Succession, now_ns: int, offset_seconds: float) -> bool:
        if is_stuck:
            refused.release()
        return not is_stuck and save(self, now_ns, offset_seconds)

    monkeypatch.setattr(Succession, "save", save_or_not)

    async def story() -> list[Snapshot | None]:
        nonlocal is_stuck
        daemon = make(folder)
        seen = []
        async with asyncio.timeout(20), daemon.running():
            await until_ready(daemon, folder)
            is_stuck = True
            for _ in range(5):
                await refused.acquire()
                seen.append(daemon.snapshot)
        return seen

    first, *_, last = asyncio.run(story())
    assert first is not None
    assert last is not None
    assert first.accounts == last.accounts != ()
    assert first.engine_accounts == last.engine_accounts
    assert first.fresh_until_ns == last.fresh_until_ns < last.taken_ns + STALE_SECONDS * 1e9


class HeldClock:
    """The clocks of a machine that holds a process up: all of them go on meanwhile."""

    def __init__(self) -> None:
        self.held_seconds = 0.0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + round(self.held_seconds * 1e9)

    def monotonic(self) -> float:
        return time.monotonic() + self.held_seconds

    def time(self) -> float:
        return time.time() + self.held_seconds


def test_a_slow_round_shifts_no_timestamp(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall-clock offset of the page stays constant."""
    monkeypatch.setattr(main_loop, "TICK_SECONDS", 0.02)
    clock, advance, offsets = HeldClock(), Ledger.advance, []
    monkeypatch.setattr(main_loop, "time", clock)
    enough = asyncio.Event()

    def advance_slowly(self: Ledger, now_ns: int) -> None:
        advance(self, now_ns)
        if daemon.snapshot is not None:
            offsets.append(daemon.snapshot.wall_offset_seconds)
        clock.held_seconds += 0.7 * (len(offsets) % 2 == 0)
        if len(offsets) == 4:
            enough.set()

    monkeypatch.setattr(Ledger, "advance", advance_slowly)
    daemon = make(folder)

    async def story() -> None:
        async with asyncio.timeout(20), daemon.running():
            await enough.wait()

    asyncio.run(story())
    assert len(set(offsets)) == 1
    assert offsets[0] == pytest.approx(time.time() - time.monotonic(), abs=0.6)


GPUS = (gpu(0), gpu(1))


def make_on_gpu(folder: Path, name: str, index: int) -> Daemon:
    """A daemon over a tiny worker of that name on the GPU with that index."""
    file = node_file(folder)
    [worker] = file["workers"]
    workers = [{**worker, "name": name, "gpus": [index]}]
    config = from_mapping(file | {"devices": "nvml", "workers": workers}, "node.yaml")
    return Daemon(config, place(config, GPUS), NoDevices(), folder / "run", on_failure="leave")


def leave_one_without_a_journal(folder: Path) -> int:
    """Have a daemon leave its worker on the first GPU, and lose the journal; the worker's pid."""

    async def story() -> int:
        daemon = make_on_gpu(folder, "w", 0)
        async with daemon.running():
            daemon.leave()
            return await until_ready(daemon, folder)

    pid = asyncio.run(story())
    RunFolder(folder / "run").journal.unlink()
    return pid


def test_an_engine_that_no_journal_names_is_where_it_was_started(folder: Path) -> None:
    """The node file names another GPU and another port by now."""
    pid = leave_one_without_a_journal(folder)

    async def story() -> tuple[str, ...]:
        daemon = make_on_gpu(folder, "w", 1)
        async with daemon.running():
            assert await until_ready(daemon, folder) == pid
            [entry] = load(RunFolder(folder / "run").journal, here())
            return entry.tag.gpus

    assert asyncio.run(story()) == ("GPU-0000",)


def test_an_engine_that_neither_journal_nor_node_file_names_is_reported_and_keeps_its_gpu(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pid = leave_one_without_a_journal(folder)

    async def story() -> None:
        daemon = make_on_gpu(folder, "v", 0)
        async with daemon.running():
            async with asyncio.timeout(20):
                while "though the node file no longer names it" not in caplog.text:
                    await asyncio.sleep(0.02)
            entries = load(RunFolder(folder / "run").journal, here())
            assert [(each.worker, each.pid) for each in entries] == [("w", pid), ("v", None)]

    asyncio.run(story())

    assert f"w is not in the node file and goes on without us (pid {pid})" in caplog.text
    assert f"w still runs on GPU-0000, though the node file no longer names it: end pid {pid}" in (
        caplog.text
    )
    assert procfs.is_alive(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
