"""Steps of engines that a person started, attributed by the kernel's peer credentials."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.discovery.attached import attached_steps
from disagg_cluster.discovery.attached.attached_steps import AttachedSteps
from disagg_cluster.discovery.observations.types import Finder, FoundEngine, Leader
from disagg_cluster.host.files.package_data import engine_side_folder
from disagg_cluster.host.processes.procfs import start_ticks
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Assignment, EngineState, Method, Role, Step, StepTotals, StreamKey
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.steps.messages import StepRecords
from disagg_exporter.steps.rows import rows_of

# An engine that sends a hello and one step, and waits for its end.
SPEAKER = """
import sys, time
from disagg_steps.counting import Facts
from disagg_steps.sender import Sender
sender = Sender(sys.argv[1], flags=int(sys.argv[2]))
sender.start()
facts = Facts(*([0] * len(Facts._fields)))
facts = facts._replace(elapsed_ns=5_000_000, context_tokens=9, context_requests=1)
while True:
    time.sleep(0.05)
    sender.step(facts, time.monotonic_ns())
"""


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    """A run folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield RunFolder(Path(name))


def found(pid: int, **more: Any) -> FoundEngine:
    return FoundEngine(
        keys=("e",),
        proposed_name="e",
        kind="vllm",
        seen_by=(Finder.PROCESSES,),
        name="e",
        leader=Leader(pid, start_ticks(pid) or 0),
        pids=frozenset({pid}),
        **more,
    )


class Speaker:
    """A process with the plugin's sender in it."""

    def __init__(self, socket: Path, flags: int = 0) -> None:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(engine_side_folder())}
        command = [sys.executable, "-c", SPEAKER, str(socket), str(flags)]
        self.process = subprocess.Popen(command, env=environment)

    def __enter__(self) -> int:
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def story(
    folder: RunFolder, flags: int, engine_of: Callable[[int], FoundEngine], seconds: float = 20.0
) -> tuple[AttachedSteps, Ledger]:
    """Listen while an engine sends, until it was received or the time is over."""

    async def run() -> tuple[AttachedSteps, Ledger]:
        ledger = Ledger()
        engines: list[FoundEngine] = []
        told = AttachedSteps(folder, ledger, CapacityModel(1.0), lambda: tuple(engines))
        told.open()
        with closing(told), Speaker(folder.attached_socket, flags) as pid:
            engines.append(engine_of(pid))
            ledger.assign(Assignment("e", Role.PREFILL, (), EngineState.READY, 0))
            async with _patience(seconds):
                while not _steps(ledger):
                    await asyncio.sleep(0.02)
        return told, ledger

    return asyncio.run(run())


@asynccontextmanager
async def _patience(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        return


def _steps(ledger: Ledger) -> int:
    return sum(sum(account.reported.steps) for account in ledger.engine_accounts(0))


def test_steps_of_a_found_engine_are_accounted_under_its_name(folder: RunFolder) -> None:
    told, ledger = story(folder, 0, found)

    assert _steps(ledger) > 0
    assert told.last_received("e").keys() == {Method.STEPS}
    [status] = told.collectors()
    assert status.collector == "steps:attached"


def test_steps_of_a_child_count_for_its_engine(folder: RunFolder) -> None:
    _, ledger = story(folder, 0, lambda _pid: found(os.getpid()))

    assert _steps(ledger) > 0


def test_a_process_with_the_reused_pid_of_a_gone_engine_is_refused(
    folder: RunFolder,
) -> None:
    told, ledger = story(
        folder, 0, lambda pid: replace(found(pid), leader=Leader(pid, 1)), seconds=1.0
    )

    assert _steps(ledger) == 0
    assert told.last_received("e") == {}


def test_a_foreign_process_is_refused(folder: RunFolder) -> None:
    told, ledger = story(folder, 0, lambda _pid: found(1 << 22), seconds=1.0)

    assert _steps(ledger) == 0
    assert told.last_received("e") == {}
    assert told.collectors() == ()


def test_steps_without_a_time_are_no_source(folder: RunFolder) -> None:
    told, ledger = story(folder, wire.NO_DETAILS, found)

    assert _steps(ledger) > 0
    assert told.last_received("e") == {}


@pytest.mark.parametrize(("ranks_here", "booked"), [(None, 3), (1, 1), (0, 0)])
def test_a_leader_is_not_accounted_for_its_followers_ranks(
    folder: RunFolder, ranks_here: int | None, booked: int
) -> None:
    """They compute on other nodes' devices, where they are accounted as followers."""
    ledger = Ledger()
    ledger.assign(Assignment("e", Role.PREFILL, (), EngineState.READY, 0))
    part = EnginePart("10.0.0.1:13345", 0, follows=False, local_ranks=ranks_here)
    engine = found(7, pod_uid="u", part=part)
    told = AttachedSteps(folder, ledger, CapacityModel(1.0), lambda: (engine,))

    for number in (1, 2):  # the first message only sets the baseline
        for rank in range(3):
            totals = StepTotals((number, 0, 0, 0), (5 * number, 0, 0, 0))
            step = Step(number * 10**9, 5, number, 1, 9, totals=totals)
            told.receive_from_pod("u", StepRecords(StreamKey("u", 0, 1, rank), 0, rows_of([step])))

    assert _steps(ledger) == booked


def test_reports_of_an_engine_are_forgotten_with_it(folder: RunFolder) -> None:
    told, _ = story(folder, 0, found)

    told.forget("e")

    assert told.last_received("e") == {}


def test_an_engine_that_is_found_again_is_received_again_without_a_restart(
    folder: RunFolder,
) -> None:
    """One scan missed it, so it counted as gone; its process and its plugin went on."""

    async def run() -> int:
        ledger = Ledger()
        engines: list[FoundEngine] = []
        told = AttachedSteps(folder, ledger, CapacityModel(1.0), lambda: tuple(engines))
        told.open()
        with closing(told), Speaker(folder.attached_socket) as pid:
            here = Assignment("e", Role.PREFILL, (), EngineState.READY, 0)
            engines.append(found(pid))
            ledger.assign(here)
            async with asyncio.timeout(20.0):
                while not _steps(ledger):
                    await asyncio.sleep(0.02)
            engines.clear()
            told.forget("e")
            ledger.assign(replace(here, state=EngineState.GONE))
            before = _steps(ledger)
            engines.append(found(pid))
            ledger.assign(here)
            async with _patience(10.0):
                while _steps(ledger) == before:
                    await asyncio.sleep(0.02)
            assert told.last_received("e").keys() == {Method.STEPS}
            return _steps(ledger) - before

    assert asyncio.run(run()) > 0


def test_a_pod_reports_only_its_own_engine(folder: RunFolder) -> None:
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.assign(Assignment(name, Role.PREFILL, (), EngineState.READY, 0))
    engines = tuple(
        replace(found(pid, pod_uid=f"uid-{name}"), name=name) for pid, name in ((1, "a"), (2, "b"))
    )
    told = AttachedSteps(folder, ledger, CapacityModel(1.0), lambda: engines)
    step = Step(10**9, 10**6, 1, 1, 5, totals=StepTotals((1, 0, 0, 0), (10**6, 0, 0, 0), 5))

    told.receive_from_pod("uid-b", StepRecords(StreamKey("uid-b", 0, 1, 0), 0, rows_of([step])))
    told.receive_from_pod("uid-c", StepRecords(StreamKey("a", 0, 1, 0), 0, rows_of([step])))

    assert (told.last_received("a"), told.last_received("b").keys()) == ({}, {Method.STEPS})


def test_an_unavailable_socket_is_logged_and_ends_nothing(tmp_path: Path) -> None:
    """For example a path too long for a socket."""
    told = AttachedSteps(RunFolder(tmp_path / ("x" * 120)), Ledger(), CapacityModel(1.0), tuple)

    async def story() -> None:
        told.open()
        with closing(told):
            assert [status.success for status in told.collectors()] == [False]

    asyncio.run(story())


@pytest.fixture
def in_the_way(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file where the socket's folder should be; the socket is tried again every millisecond."""
    monkeypatch.setattr(attached_steps, "AGAIN_SECONDS", 0.001)
    parent = folder.attached_socket.parent
    parent.parent.mkdir(parents=True, exist_ok=True)
    parent.write_text("in the way")
    return parent


def test_a_socket_that_cannot_be_opened_is_tried_again(
    folder: RunFolder, in_the_way: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = AttachedSteps(folder, Ledger(), CapacityModel(1.0), tuple)

    async def story() -> None:
        told.open()
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert [status.success for status in told.collectors()] == [False]
        in_the_way.unlink()
        async with _patience(20.0):
            while told.collectors():
                await asyncio.sleep(0.02)
        assert folder.attached_socket.is_socket()
        told.close()

    asyncio.run(story())
    assert not folder.attached_socket.exists()
    assert sum("unavailable" in record.message for record in caplog.records) == 1


def test_a_closed_socket_is_not_tried_again(folder: RunFolder, in_the_way: Path) -> None:
    told = AttachedSteps(folder, Ledger(), CapacityModel(1.0), tuple)

    async def story() -> None:
        told.open()
        told.close()
        in_the_way.unlink()
        for _ in range(5):
            await asyncio.sleep(0.002)

    asyncio.run(story())
    assert not in_the_way.exists()
