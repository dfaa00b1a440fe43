"""What the daemon makes of its workers' changes and probes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disagg_cluster.host.processes import procfs
from disagg_cluster.lifecycle.state import WorkerIdentity, WorkerState
from disagg_cluster.telemetry.engine_registry import LINGER_SECONDS, EngineRegistry
from disagg_cluster.telemetry.launched_engines import LaunchedEngines
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.devices.source import pseudo_device
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.inside_engine.disagg_steps.sender import Sender
from disagg_exporter.model import Assignment, EngineState, Method, Role, StepLimits
from disagg_exporter.steps.plugin_silence import GRACE_SECONDS
from support.node_files import node, worker
from support.running_node import wait_for

STARTING, READY, DRAINING = WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING


@pytest.mark.parametrize(
    ("state", "pid", "answered", "up"),
    [
        (READY, 7, True, True),
        (READY, 7, False, False),
        (READY, 7, None, None),
        (DRAINING, 7, True, True),
        (STARTING, 7, None, False),
        (WorkerState.BACKOFF, None, True, False),
    ],
)
def test_engine_up_reflects_state_and_last_probe(
    state: WorkerState, pid: int | None, answered: bool | None, up: bool | None
) -> None:
    workers = node(worker("w")).workers
    registry = EngineRegistry(Ledger(), 1.0, up_of=lambda _name: answered)
    engines = LaunchedEngines(workers, lambda _name: WorkerIdentity(), registry)

    engines.changed("w", WorkerState.STOPPED, state, pid, "")

    assert [status.up for status in registry.statuses()] == [up]


@pytest.mark.parametrize("served", [False, True])
def test_a_starting_engine_is_scraped_only_if_it_served_before(served: bool) -> None:
    workers = node(worker("w")).workers
    registry = EngineRegistry(Ledger(), 1.0, served=lambda _name: served)
    engines = LaunchedEngines(workers, lambda _name: WorkerIdentity(), registry)

    engines.changed("w", WorkerState.STOPPED, STARTING, 7, "")

    assert registry.is_scraped("w") is served


def test_a_released_engine_is_shown_as_gone_for_the_linger_time() -> None:
    workers = node(worker("w"), worker("x", port=8101)).workers
    now_ns, device = 10**12, pseudo_device("w", 0)
    ledger = Ledger()
    ledger.add_device(device, now_ns)
    registry = EngineRegistry(ledger, 1.0, clock_ns=lambda: now_ns)
    identity = WorkerIdentity(gpus=(device.gpu,))
    engines = LaunchedEngines(workers, lambda _name: identity, registry, clock_ns=lambda: now_ns)
    for name, pid in (("w", 7), ("x", 8)):
        engines.changed(name, WorkerState.STOPPED, READY, pid, "")
    engines.changed("w", READY, WorkerState.STOPPED, None, "")

    engines.let_go("w", device)
    engines.forget_the_gone()
    now_ns += round((LINGER_SECONDS - 1) * 1e9)
    engines.forget_the_gone()

    states = {status.engine: status.state for status in registry.statuses()}
    assert states == {"w": EngineState.GONE, "x": EngineState.READY}
    assert {account.engine for account in ledger.engine_accounts(now_ns)} == {"w", "x"}
    assert registry.devices() == (device,)
    assert engines.all_ready

    now_ns += 10**9
    engines.forget_the_gone()

    assert [status.engine for status in registry.statuses()] == ["x"]
    assert {account.engine for account in ledger.engine_accounts(now_ns)} == {"x"}
    assert registry.devices() == ()


def test_an_engine_drained_by_hand_serves_no_pool_until_it_is_resumed() -> None:
    workers = node(worker("w"), worker("x", port=8101)).workers
    device, ledger = pseudo_device("w", 0), Ledger()
    ledger.add_device(device, 10**12)
    registry = EngineRegistry(ledger, 1.0)
    identity = WorkerIdentity(role=Role.DECODE, gpus=(device.gpu,))
    engines = LaunchedEngines(workers, lambda _name: identity, registry)
    for name, pid in (("w", 7), ("x", 8)):
        engines.changed(name, WorkerState.STOPPED, READY, pid, "")

    def states() -> list[EngineState]:
        return [status.state for status in registry.statuses()]

    engines.set_drained(["w"])
    assert states() == [EngineState.DRAINING, EngineState.READY]
    assert engines.all_ready  # what the node launched runs
    assert registry.is_scraped("w")

    engines.changed("w", READY, STARTING, 9, "")  # it crashed: a drain outlasts that
    assert states() == [EngineState.STARTING, EngineState.READY]
    engines.changed("w", STARTING, READY, 9, "")
    assert states() == [EngineState.DRAINING, EngineState.READY]

    engines.set_drained([])
    assert states() == [EngineState.READY] * 2


def test_an_engine_launched_again_under_its_name_is_not_forgotten() -> None:
    workers = node(worker("w")).workers
    now_ns = 10**12
    registry = EngineRegistry(Ledger(), 1.0, clock_ns=lambda: now_ns)
    engines = LaunchedEngines(
        workers, lambda _name: WorkerIdentity(), registry, clock_ns=lambda: now_ns
    )

    engines.let_go("w")
    engines.add(workers[0], None)
    now_ns += round(LINGER_SECONDS * 1e9)
    engines.forget_the_gone()

    assert [status.engine for status in registry.statuses()] == ["w"]


def test_an_engine_that_served_before_counts_as_ready_from_its_start() -> None:
    """Its plugin looks for a daemon once a second: until then no lesser source is selected."""
    workers = node(worker("w")).workers
    now_ns = 10**12
    registry = EngineRegistry(Ledger(), 1.0, served=lambda _name: True)
    engines = LaunchedEngines(
        workers, lambda _name: WorkerIdentity(), registry, clock_ns=lambda: now_ns
    )

    engines.changed("w", WorkerState.STOPPED, STARTING, 7, "")

    assert [subject.ready_ns for subject in registry.source_candidates()] == [now_ns]


def test_steps_of_a_new_process_count_despite_the_silence_of_its_predecessor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps count as soon as they are received, not only after the next silence check."""
    now_ns = 10**12
    ledger = Ledger()
    registry = EngineRegistry(ledger, 1.0)
    engines = LaunchedEngines(
        node(worker("w")).workers, lambda _name: WorkerIdentity(), registry, clock_ns=lambda: now_ns
    )
    feed = StepFeed("w", tmp_path / "s", ledger, CapacityModel(1.0), lambda: engines.pid("w"), {})

    async def story() -> None:
        nonlocal now_ns
        with engines.receiving({"w": feed}, asyncio.get_running_loop()):
            engines.changed("w", WorkerState.STOPPED, STARTING, 7, "")
            engines.changed("w", STARTING, READY, 7, "")
            now_ns += round(GRACE_SECONDS * 1e9)
            engines.check_step_silence()
            assert "never connected" in caplog.text

            engines.changed("w", READY, WorkerState.BACKOFF, None, "")
            engines.changed("w", WorkerState.BACKOFF, STARTING, 8, "")
            feed.received_ns = now_ns  # as its plugin's first message has it

            assert [subject.last_received for subject in registry.source_candidates()] == [
                {Method.STEPS: now_ns}
            ]

    asyncio.run(story())


def test_a_simulated_engine_is_reported_as_such_until_its_next_process_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counters remain simulated ones while it waits for a restart."""
    monkeypatch.setattr(
        "disagg_cluster.telemetry.steps.step_feed.in_session_of", lambda _leader, _pid: True
    )
    ledger = Ledger()
    registry = EngineRegistry(ledger, 1.0)
    engines = LaunchedEngines(node(worker("w")).workers, lambda _name: WorkerIdentity(), registry)
    feed = StepFeed("w", folder / "s", ledger, CapacityModel(1.0), lambda: engines.pid("w"), {})
    said: list[bool] = []

    async def story() -> None:
        with engines.receiving({"w": feed}, asyncio.get_running_loop()):
            engines.changed("w", WorkerState.STOPPED, STARTING, 7, "")
            sender = Sender(str(folder / "s"), flags=wire.SIMULATED)
            sender.beat()
            feed.drain()
            sender.close()
            said.append(engines.simulated)
            engines.changed("w", STARTING, WorkerState.BACKOFF, None, "")
            said.append(engines.simulated)
            engines.changed("w", WorkerState.BACKOFF, STARTING, 8, "")
            said.append(engines.simulated)

    asyncio.run(story())

    assert said == [True, True, False]


def test_an_exit_whose_report_failed_is_reported_when_the_change_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, states = Ledger(), list[EngineState]()
    registry = EngineRegistry(ledger, 1.0)
    engines = LaunchedEngines(node(worker("w")).workers, lambda _name: WorkerIdentity(), registry)
    engines.changed("w", WorkerState.STOPPED, READY, 7, "")
    trips = iter([MemoryError()])

    def assign(assignment: Assignment) -> None:
        if (error := next(trips, None)) is not None:
            raise error
        states.append(assignment.state)

    monkeypatch.setattr(ledger, "assign", assign)
    with pytest.raises(MemoryError):
        engines.changed("w", READY, WorkerState.BACKOFF, None, "")
    engines.changed("w", READY, WorkerState.BACKOFF, None, "")

    assert states == [EngineState.GONE]


def test_step_limits_unreadable_at_start_are_read_when_the_engine_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = EngineRegistry(Ledger(), 1.0)
    workers = node(worker("w")).workers
    engines = LaunchedEngines(workers, lambda _name: WorkerIdentity(), registry)
    command = ("vllm", "serve", "--max-num-seqs", "64", "--max-num-batched-tokens", "512")
    lines = iter([(), command])
    monkeypatch.setattr(procfs, "command_line", lambda pid: next(lines))

    limits = []
    for old, new in ((WorkerState.STOPPED, STARTING), (STARTING, READY)):
        engines.changed("w", old, new, os.getpid(), "")
        limits.append(registry.statuses()[0].limits)

    assert limits == [StepLimits(), StepLimits(512, 64)]
    # Its page is divided by it.
    assert [subject.step_tokens for subject in registry.source_candidates()] == [512]


def test_start_time_and_step_limits_are_those_of_the_running_process() -> None:
    workers = node(worker("w")).workers
    registry = EngineRegistry(Ledger(), 1.0)
    engines = LaunchedEngines(workers, lambda _name: WorkerIdentity(), registry)
    began = time.time()
    process = subprocess.Popen([sys.executable, "-c", "input()", "--max-num-seqs", "64"], stdin=-1)
    try:
        # The kernel lets us go on before the new program has its command line.
        wait_for(lambda: procfs.command_line(process.pid), "a command line")
        engines.changed("w", WorkerState.STOPPED, STARTING, process.pid, "")
        [running] = registry.statuses()
        engines.changed("w", STARTING, WorkerState.BACKOFF, None, "")
        [ended] = registry.statuses()
    finally:
        process.kill()
        process.communicate()

    assert running.start_timestamp_seconds == pytest.approx(began, abs=5)
    assert running.limits == StepLimits(None, 64)
    assert ended.start_timestamp_seconds is None
