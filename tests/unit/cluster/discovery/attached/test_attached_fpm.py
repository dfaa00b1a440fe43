import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from disagg_cluster.config import Attach
from disagg_cluster.discovery.attach_mode import AttachMode
from disagg_cluster.discovery.attached.attached_fpm import AttachedFpm, addresses_of
from disagg_cluster.discovery.observations.types import (
    EngineNames,
    Finder,
    FoundEngine,
    Leader,
)
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_cluster.telemetry.source_selection import SourceSelection
from disagg_cluster.telemetry.steps.step_source import StepSources
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import (
    Assignment,
    CollectorStatus,
    Device,
    EngineAccount,
    EngineState,
    Method,
    Role,
)
from disagg_exporter.roles.evidence.types import Markers
from support.children import free_port
from support.fake_engines import FakeEngine, install
from support.fpm_publisher import STEP, Publisher

ME = os.getpid()
PORT = "DYN_FORWARDPASS_METRIC_PORT"


def found(
    env: Mapping[str, str] | None = None,
    argv: Sequence[str] = (),
    kind: str = "vllm",
    leader: Leader | None = Leader(ME, 0),  # noqa: B008 it is frozen
) -> FoundEngine:
    return FoundEngine(
        keys=("k",),
        proposed_name="e",
        kind=kind,
        seen_by=(Finder.PROCESSES,),
        name="e",
        leader=leader,
        pids=frozenset({ME}),
        markers=Markers(argv=tuple(argv), env=env or {}),
    )


class Steps:
    """Steps reported by our plugin: none, unless a test sets when they last arrived."""

    def __init__(self, received_ns: int | None = None) -> None:
        self.received_ns = received_ns

    def last_received(self, _name: str) -> Mapping[Method, int]:
        return {} if self.received_ns is None else {Method.STEPS: self.received_ns}

    def drain(self, name: str) -> None: ...

    def collectors(self) -> tuple[CollectorStatus, ...]:
        return ()

    def close(self) -> None: ...

    def forget(self, name: str) -> None: ...


def books() -> Ledger:
    ledger = Ledger()
    ledger.add_device(Device("g0", 0, "H100", "nvidia0"), 0)
    ledger.assign(Assignment("e", Role.DECODE, ("g0",), EngineState.READY, 0, (ME,)))
    ledger.use("e", Method.FPM, 0)
    return ledger


def follow(told: AttachedFpm, publish: Callable[[], object], until: Callable[[], bool]) -> None:
    """Follow the engines: publish once there is a subscriber, until a condition holds."""

    async def story() -> None:
        following = asyncio.create_task(told.run())
        try:
            async with asyncio.timeout(30):
                await asyncio.to_thread(publish)
                while not until():
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(story())


def decode_steps(ledger: Ledger) -> int:
    return ledger.engine_accounts(0)[0].reported.steps[1]


def test_an_unforeseen_error_is_a_failed_collector_of_that_engine_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def trip(_engine: FoundEngine) -> tuple[str, ...]:
        raise ZeroDivisionError("s3cret")

    engine = found()
    told = AttachedFpm(books(), CapacityModel(0.05), lambda: (engine,), Steps(), lambda _: None)
    loop = asyncio.new_event_loop()
    try:
        with monkeypatch.context() as broken:
            broken.setattr("disagg_cluster.discovery.attached.attached_fpm.addresses_of", trip)
            told.follow(loop)
            told.follow(loop)
            assert [(c.collector, c.success) for c in told.collectors()] == [("fpm:e", False)]
        told.follow(loop)
    finally:
        loop.close()

    assert told.collectors() == ()
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == [
        "fpm:e: it fails with ZeroDivisionError"
    ]


def test_steps_of_a_publishing_worker_are_received_until_it_is_forgotten() -> None:
    ledger, seen = books(), []
    with Publisher() as publisher:
        engine = found({PORT: publisher.address.rpartition(":")[2]})
        told = AttachedFpm(ledger, CapacityModel(0.05), lambda: (engine,), Steps(), lambda _: None)

        def publish() -> None:
            publisher.wait_for_subscriber()
            for _ in range(3):
                publisher.send(STEP)

        def until() -> bool:
            seen[:] = [*told.last_received("e"), *(c.collector for c in told.collectors())]
            return decode_steps(ledger) == 2

        follow(told, publish, until)

    assert seen == [Method.FPM, "fpm:e"]
    assert told.last_received("e") == {}
    assert told.collectors() == ()


def test_a_replacement_process_is_received_from_its_first_message() -> None:
    """Its sequence numbers restart, and would be taken for duplicates."""
    ledger, now = books(), [found()]
    with Publisher() as publisher:
        env = {PORT: publisher.address.rpartition(":")[2]}
        now[0] = found(env)
        told = AttachedFpm(ledger, CapacityModel(0.05), lambda: tuple(now), Steps(), lambda _: None)

        async def story() -> None:
            following = asyncio.create_task(told.run())
            try:
                async with asyncio.timeout(30):
                    await asyncio.to_thread(publisher.wait_for_subscriber)
                    for number in range(3):
                        publisher.send(STEP, number)
                    while decode_steps(ledger) < 2:
                        await asyncio.sleep(0.01)
                    feed = told.feeds["e"]
                    now[0] = found(env, leader=None)  # between the two it is only listed
                    told.follow(asyncio.get_running_loop())
                    assert told.feeds["e"] is feed
                    now[0] = found(env, leader=Leader(ME + 1, 0))
                    while told.feeds["e"] is feed:
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(publisher.wait_for_subscriber)
                    for number in range(3):
                        publisher.send(STEP, number)
                    while decode_steps(ledger) < 4:
                        await asyncio.sleep(0.01)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

        asyncio.run(story())

    assert decode_steps(ledger) == 4


def test_steps_reported_by_the_plugin_are_not_accounted_twice() -> None:
    ledger = books()
    with Publisher() as publisher:
        engine = found({PORT: publisher.address.rpartition(":")[2]})
        told = AttachedFpm(
            ledger, CapacityModel(0.05), lambda: (engine,), Steps(received_ns=0), lambda _: None,
            clock_ns=lambda: 1_000_000_000,
        )  # fmt: skip

        def publish() -> None:
            publisher.wait_for_subscriber()
            publisher.send(STEP)
            publisher.send(STEP)

        follow(told, publish, lambda: bool(told.last_received("e")))

    assert decode_steps(ledger) == 0


def test_several_sources_of_steps_count_as_one() -> None:
    both = StepSources(Steps(received_ns=7), Steps())

    assert both.last_received("e") == {Method.STEPS: 7}


@pytest.mark.parametrize(
    ("engine", "addresses"),
    [
        (found({PORT: "20380"}), ("tcp://127.0.0.1:20380",)),
        (
            found({PORT: "20380"}, ("x", "--data-parallel-size", "2")),
            ("tcp://127.0.0.1:20380", "tcp://127.0.0.1:20381"),
        ),
        (found({PORT: "20380"}, ("--data-parallel-size=x",)), ("tcp://127.0.0.1:20380",)),
        (found({}), ()),
        (found({PORT: "20380"}, leader=None), ()),
        (
            found(
                argv=("--forward-pass-metrics-ipc-name=ipc:///tmp/f", "--dp-size", "2"),
                kind="sglang",
            ),
            ("ipc:///tmp/f.0", "ipc:///tmp/f.1"),
        ),
        (found(argv=("--forward-pass-metrics-ipc-name",), kind="sglang"), ()),
        (found({PORT: "20380"}, kind="sglang"), ()),
    ],
)
def test_publishing_addresses_are_derived_from_arguments_and_environment(
    engine: FoundEngine, addresses: tuple[str, ...]
) -> None:
    assert addresses_of(engine) == addresses


def test_a_found_dynamo_worker_is_accounted_by_its_published_steps(
    tmp_path: Path,
) -> None:
    """Found among the processes of this host, with no contact except its messages."""
    install(tmp_path)
    ledger, capacity_model = Ledger(), CapacityModel(0.05)
    registry = EngineRegistry(ledger, 0.2)
    attaching = AttachMode(
        Attach(processes=True), registry, EngineNames(), RunFolder(tmp_path), ledger,
        capacity_model, (), tuple, interval_seconds=0.5,
    )  # fmt: skip
    sourcing = SourceSelection(ledger)

    async def story(name: str) -> EngineAccount:
        work = [asyncio.create_task(part) for part in (attaching.run(), registry.pages.run())]
        try:
            async with asyncio.timeout(60):
                while True:
                    await asyncio.sleep(0.1)
                    now_ns = time.monotonic_ns()
                    sourcing.select(registry.source_candidates(), now_ns)
                    for account in ledger.engine_accounts(now_ns):
                        known = account.engine == name and account.reported.steps[1] > 5
                        if known and account.method is Method.FPM:
                            return account
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    environment = {PORT: str(free_port())}
    with FakeEngine("dynamo", tmp_path, environment=environment) as engine:
        account = asyncio.run(story(f"dynamo-{engine.port}"))

    assert account.running == 4
    assert account.reported.elapsed_ns[1] == account.reported.steps[1] * 10_000_000
