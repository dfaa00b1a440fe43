"""Workers that come and go while a daemon runs: what becomes of those that stay or wait."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.layout import place
from disagg_cluster.config.rereading import reread
from disagg_cluster.control.messages import ReassignWorker, RereadNodeFile
from disagg_cluster.daemon import roster as roster_module
from disagg_cluster.daemon.composition import Composition
from disagg_cluster.daemon.node_file_reloader import NodeFileReloader
from disagg_cluster.daemon.roster import WorkerRoster
from disagg_cluster.lifecycle.state import Lifecycle, WorkerIdentity
from disagg_cluster.nodefile import from_mapping
from disagg_cluster.supervisor.journal.journal_text import Assignments
from disagg_cluster.supervisor.supervisor import Supervisor
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.model import Device, EngineState, Role
from support.node_files import gpu

LOOK = RereadNodeFile(dry_run=True)


class Crew:
    """The workers of a supervisor without processes; each ends when a test says so."""

    def __init__(self, specs: dict[str, WorkerSpec]) -> None:
        self.specs = dict(specs)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Future[bool]] = {}
        self.held: dict[str, str] = {}

    def add(self, spec: WorkerSpec) -> None:
        self.specs[spec.name] = spec

    def begin(self, worker: str) -> None:
        assert worker in self.specs
        self.begun.append(worker)

    async def end(self, worker: str) -> bool:
        assert worker in self.specs
        self.ends[worker] = asyncio.get_running_loop().create_future()
        return await self.ends[worker]

    async def forget(self, worker: str) -> None:
        del self.specs[worker]

    def respecify(self, spec: WorkerSpec) -> None:
        assert spec.name in self.specs
        self.specs[spec.name] = spec

    def record(self) -> None:
        pass

    def snapshots(self) -> tuple[()]:
        return ()

    def gpus_held(self) -> dict[str, str]:
        return self.held

    def life(self, worker: str) -> Lifecycle:
        assert worker in self.specs
        return Lifecycle()

    def tag(self, worker: str) -> WorkerIdentity:
        return self.specs[worker].tag

    def command_digest(self, worker: str) -> str:
        return self.specs[worker].name


def node(*workers: dict[str, Any], devices: str = "cpu") -> NodeConfig:
    return from_mapping({"devices": devices, "workers": list(workers)}, "node.yaml")


def worker(name: str, port: int, *args: str) -> dict[str, Any]:
    return {
        "name": name,
        "role": "mixed",
        "model": "tiny",
        "port": port,
        "args": list(args),
        "python": "/usr/bin/python3",
    }


class Stage:
    """The parts of a daemon that runs no process, and its roster."""

    def __init__(
        self, folder: Path, config: NodeConfig, devices: tuple[Device, ...] | None = None
    ) -> None:
        self.config = config
        layout = place(config, devices)
        self.parts = Composition(config, layout, NoDevices(), folder, tuple)
        (folder / "sim").mkdir()
        self.crew = Crew(self.parts.specs)
        crew = cast("Supervisor", self.crew)
        self.parts.workers.supervisor = crew
        self.parts.moving.reassigner.adopt(crew, (), Assignments())
        self.roster = WorkerRoster(self.parts, config)

    def take(self, after: NodeConfig) -> None:
        """What a reload does once the file was read."""
        found = reread(self.config, after)
        assert self.roster.blockers(found.added, found.removed) == ()
        layout = self.roster.layout_for(after, "node.yaml")
        self.roster.change(after, layout, found.workers, found.added, found.removed)
        self.config = after

    async def ended(self, worker: str, *, well: bool = True) -> None:
        """Let a worker end, or not; and let the others hear of it."""
        await asyncio.sleep(0)
        self.crew.ends[worker].set_result(well)
        for _ in range(5):
            await asyncio.sleep(0)

    def known(self) -> set[str]:
        """The workers of all parts; each part knows the same, and can be asked for all of them."""
        parts = self.parts
        names = set(parts.specs)
        assert {parts.digests[name]() for name in names} == names
        shown = {status.engine: status.state for status in parts.registry.statuses()}
        # Those that were let go stay on the page for a while, as gone.
        assert all(state is EngineState.GONE for name, state in shown.items() if name not in names)
        assert set(self.crew.specs) == names <= set(shown)
        assert {placed.worker for placed in parts.layout.placements} == names
        assert {status.worker for status in parts.moving.reassigner.statuses()} <= names
        return names


def test_a_new_worker_is_given_no_gpu_that_an_engine_of_an_earlier_file_runs_on(
    tmp_path: Path,
) -> None:
    stays = {**worker("stays", 1001), "gpus": 1}
    stage = Stage(tmp_path, node(stays, devices="sim"), (gpu(0), gpu(1), gpu(2)))
    stage.crew.held = {"GPU-0000": "stays", "GPU-0001": "left"}

    after = node(stays, {**worker("new", 1002), "gpus": 1}, devices="sim")

    assert stage.roster.layout_for(after, "node.yaml").of("new").gpus == ("GPU-0002",)


def test_an_ended_worker_is_removed_while_another_still_ends(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node(worker("a", 1001), worker("b", 1002), worker("c", 1003)))

    async def story() -> None:
        stage.take(node(worker("c", 1003)))
        assert stage.known() == {"a", "b", "c"}
        await stage.ended("a")
        assert stage.known() == {"b", "c"}
        await stage.ended("b")
        assert stage.known() == {"c"}
        assert [device.gpu for device in stage.parts.layout.devices] == ["cpu-c"]
        assert [device.gpu for device in stage.parts.registry.devices()] == ["cpu-a", "cpu-b"]
        stage.take(node(worker("c", 1003), worker("a", 1001)))
        assert stage.known() == {"a", "c"}
        await stage.roster.close()

    asyncio.run(story())


def test_a_worker_waiting_for_a_port_starts_with_the_latest_node_file(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node(worker("a", 1001), worker("b", 1002)))

    async def story() -> None:
        stage.take(node(worker("b", 1002), worker("new", 1001), worker("other", 1003)))
        assert stage.known() == {"a", "b", "other"}
        stage.take(node(worker("b", 1002), worker("new", 1001, "-x"), worker("other", 1003)))
        assert stage.crew.begun == ["other"]
        await stage.ended("a")
        assert stage.known() == {"b", "new", "other"}
        assert stage.crew.begun == ["other", "new"]
        assert "-x" in stage.crew.specs["new"].command.argv
        await stage.roster.close()

    asyncio.run(story())


def test_a_worker_that_cannot_be_ended_is_retried_and_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(roster_module, "_AGAIN_SECONDS", 0.0)
    stage = Stage(tmp_path, node(worker("a", 1001), worker("b", 1002), worker("c", 1003)))

    async def story() -> None:
        stage.take(node(worker("c", 1003)))
        await stage.ended("a", well=False)
        await stage.ended("b")
        assert stage.known() == {"a", "c"}
        [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert told.getMessage() == "a: cannot be ended, nor can another take its place"
        assert stage.roster.blockers((), ("c",)) == ("a: still ends since the last reload",)
        await stage.ended("a")
        assert stage.known() == {"c"}
        assert stage.roster.blockers((), ("c",)) == ()
        await stage.roster.close()

    asyncio.run(story())


def test_no_worker_is_removed_while_another_is_moved(tmp_path: Path) -> None:
    """What the move leaves of its old role may be just that worker."""
    roles = {"a": "decode", "b": "decode", "p": "prefill"}
    workers = [
        {"name": name, "engine": "standin", "role": role, "model": "tiny", "port": 1001 + number}
        for number, (name, role) in enumerate(roles.items())
    ]
    stage = Stage(tmp_path, node(*workers))
    reassigner = stage.parts.moving.reassigner
    reassigner.begin(ReassignWorker("a", Role.PREFILL), "r")

    blocked = (
        "a: is being reassigned from decode to prefill; leaving: waits until the router sends it "
        "nothing new any more, 15 s at most",
    )
    assert stage.roster.blockers((), ("a",)) == blocked
    assert stage.roster.blockers((), ("b",)) == blocked
    [added] = node(worker("c", 1003)).workers
    assert stage.roster.blockers((added,), ()) == ()


def test_a_closed_roster_reports_that_the_daemon_is_stopping(tmp_path: Path) -> None:
    stage = Stage(tmp_path, node(worker("a", 1001)))

    async def story() -> None:
        await stage.roster.close()
        assert stage.roster.blockers((), ("a",)) == ("the daemon is stopping",)

    asyncio.run(story())


class WrittenFile:
    """A node file that says what a test says, read again by a daemon."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says = stage.config
        monkeypatch.setattr("disagg_cluster.daemon.node_file_reloader.load", lambda *_: self.says)

    def listens(self, address: str) -> None:
        listen = self.says.listen.model_copy(update={"metrics": address})
        self.says = self.says.model_copy(update={"listen": listen})


def test_settings_overridden_by_options_are_not_reported_as_deferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_started(said: NodeConfig) -> NodeConfig:
        links = said.links.model_copy(update={"grafana": "https://grafana.example.com"})
        return said.model_copy(update={"links": links})

    stage = Stage(tmp_path, as_started(node(worker("a", 1001))))
    written = WrittenFile(stage, monkeypatch)
    file = NodeFileReloader(tmp_path / "node.yaml", stage.config, stage.roster, as_started)
    written.says = node(worker("a", 1001))

    assert asyncio.run(file.read(LOOK)).explanation == ()
    written.listens("127.0.0.1:9900")
    assert asyncio.run(file.read(LOOK)).deferred == ("listen.metrics",)
    # A reload does not apply it, so it stays deferred.
    assert asyncio.run(file.read(RereadNodeFile())).deferred == ("listen.metrics",)
    assert asyncio.run(file.read(RereadNodeFile())).deferred == ("listen.metrics",)


def test_a_dry_run_counts_as_a_reload_only_if_the_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.yaml"
    path.touch()
    stage = Stage(tmp_path, node(worker("a", 1001)))
    written = WrittenFile(stage, monkeypatch)
    file = NodeFileReloader(path, stage.config, stage.roster)
    path.write_text("more", encoding="utf-8")
    written.says = node(worker("a", 1001, "-more"))

    async def story() -> None:
        await file.read(LOOK)
        assert "was written since" in file.freshness()
        await file.read(RereadNodeFile())
        assert file.freshness() == ""
        path.write_text("a comment", encoding="utf-8")
        assert file.freshness()
        await file.read(LOOK)
        assert file.freshness() == ""

    asyncio.run(story())


def test_a_reload_is_refused_if_the_file_changed_since_the_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only a value of the environment changed, which a dry run does not show."""
    stage = Stage(tmp_path, node(worker("a", 1001)))
    written = WrittenFile(stage, monkeypatch)
    file = NodeFileReloader(tmp_path / "node.yaml", stage.config, stage.roster)

    def says(secret: str) -> None:
        written.says = node({**worker("a", 1001), "env": {"TOKEN": secret}})

    async def story() -> None:
        says("one")
        looked = await file.read(LOOK)
        says("two")
        assert (await file.read(LOOK)).explanation == looked.explanation
        refused = (await file.read(RereadNodeFile(digest=looked.digest))).refusal
        assert refused is not None
        assert refused.reason == "changed_since"
        assert stage.crew.specs["a"].command.env.get("TOKEN") is None

        says("one")
        taken = await file.read(RereadNodeFile(digest=looked.digest))
        assert taken.workers == ("a",)
        assert stage.crew.specs["a"].command.env["TOKEN"] == "one"
        # The running configuration has changed, so the dry run is no longer valid.
        assert (await file.read(RereadNodeFile(digest=looked.digest))).refusal == refused

    asyncio.run(story())


def test_a_reload_that_leaves_users_without_a_role_is_applied_if_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, node(worker("a", 1001), worker("b", 1002)))
    written = WrittenFile(stage, monkeypatch)
    written.says = node(worker("a", 1001))
    gap = "b: tiny would be left without mixed"
    monkeypatch.setattr(stage.roster, "gaps", lambda *_: (gap,))
    file = NodeFileReloader(tmp_path / "node.yaml", stage.config, stage.roster)

    async def story() -> None:
        for verb in (LOOK, RereadNodeFile()):
            refused = await file.read(verb)
            assert refused.problems == (gap,)
            assert refused.refusal is not None
            assert refused.refusal.reason == "last_of_role"
            assert "--force" in refused.refusal.way_out
        assert stage.known() == {"a", "b"}
        assert (await file.read(RereadNodeFile(force=True))).removed
        await stage.ended("b")
        assert stage.known() == {"a"}
        await stage.roster.close()

    asyncio.run(story())


def test_of_two_concurrent_reloads_the_later_read_of_the_file_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, node(worker("a", 1001)))
    files = [node(worker("a", 1001, "-first")), node(worker("a", 1001, "-second"))]
    looks = iter(files)

    def slow_first(*_: object) -> NodeConfig:
        looked = next(looks)
        if looked is files[0]:
            begun.set()
            assert may_end.wait(10)
        return looked

    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr("disagg_cluster.daemon.node_file_reloader.load", slow_first)

    async def story() -> None:
        file = NodeFileReloader(tmp_path / "node.yaml", stage.config, stage.roster)
        first = asyncio.create_task(file.read(RereadNodeFile()))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(file.read(RereadNodeFile()))
        await asyncio.sleep(0.05)
        may_end.set()
        await asyncio.gather(first, second)
        assert "-second" in stage.crew.specs["a"].command.argv

    asyncio.run(story())
