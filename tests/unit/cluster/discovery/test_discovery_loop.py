"""The discovery loop: a periodic scan with all finders, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from disagg_cluster.discovery.attached.engines import AttachedEngines
from disagg_cluster.discovery.discovery_loop import DiscoveryLoop
from disagg_cluster.discovery.observations.types import (
    Endpoint,
    EngineNames,
    Finder,
    Leader,
    Observation,
    Scan,
)
from disagg_cluster.telemetry.engine_registry import EngineRegistry, KnownPeer
from disagg_exporter.accounting import Ledger
from disagg_exporter.roles.evidence.types import Markers

SECRET = "s3cret"


class Broken:
    """A finder that fails on what it finds."""

    finder = Finder.DYNAMO

    def scan(self) -> Scan:
        raise ValueError(SECRET)


class FixedFinder:
    """A finder that reports what it is given."""

    finder = Finder.PROCESSES

    def __init__(self, *observations: Observation) -> None:
        self._observations = observations

    def scan(self) -> Scan:
        return Scan(self._observations)


class Failing(FixedFinder):
    """A finder that can list nothing from its second scan on, as without free descriptors."""

    def __init__(self, *observations: Observation, raises: bool) -> None:
        super().__init__(*observations)
        self._raises = raises
        self._scans = 0

    def scan(self) -> Scan:
        self._scans += 1
        if self._scans == 1:
            return super().scan()
        if self._raises:
            raise OSError(24, "Too many open files")
        return Scan(lost="the processes of this host cannot be listed", failed=True)


def server(markers: Markers) -> Observation:
    return Observation(
        finder=Finder.PROCESSES,
        kind="vllm",
        endpoints=(Endpoint("127.0.0.1", 1),),
        leader=Leader(7, 1),
        markers=markers,
    )


def after_some_looks(
    *finders: Broken | FixedFinder, ours: Sequence[int] = ()
) -> tuple[DiscoveryLoop, Sequence[str]]:
    """A discovery loop after some scans, and the engines that it found."""
    ledger, scans = Ledger(), 0

    class Counting(EngineRegistry):
        """Counts how often the engines that we launched were requested."""

        def launched_pids(self) -> tuple[int, ...]:
            return tuple(ours)

        def peers(self) -> tuple[KnownPeer, ...]:
            nonlocal scans
            scans += 1
            return ()

    registry = Counting(ledger, 1.0)
    attached = AttachedEngines(registry, ledger, ())
    scout = DiscoveryLoop(finders, attached, EngineNames(), registry, interval_seconds=0.01)

    async def story() -> None:
        running = asyncio.create_task(scout.run())
        async with asyncio.timeout(20):
            while scans < 3 and not running.done():
                await asyncio.sleep(0.01)
        assert not running.done(), running.exception()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())
    return scout, [engine.name for engine in attached.engines()]


def test_a_finder_that_fails_hides_nothing_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        scout, found = after_some_looks(Broken(), FixedFinder(server(Markers())))

    assert found == ["vllm-1"]
    assert {status.collector: status.success for status in scout.collectors()} == {
        "discovery:dynamo": False,
        "discovery:processes": True,
    }
    assert [why for why in scout.lost() if "ValueError" in why]
    assert SECRET not in caplog.text


@pytest.mark.parametrize("raises", [False, True])
def test_engines_stay_for_a_while_when_a_scan_observes_nothing(
    raises: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their accounts, and the sockets of their steps, are not to end for want of a descriptor."""
    with caplog.at_level(logging.INFO):
        scout, found = after_some_looks(Failing(server(Markers()), raises=raises))

    assert (found, "disappeared" in caplog.text) == (["vllm-1"], False)
    assert [status.success for status in scout.collectors()] == [False]

    monkeypatch.setattr("disagg_cluster.discovery.discovery_loop.KEPT_SECONDS", 0.0)
    assert after_some_looks(Failing(server(Markers()), raises=raises))[1] == []


def test_engines_launched_during_a_scan_are_not_found() -> None:
    assert (
        after_some_looks(FixedFinder(replace(server(Markers()), pids=frozenset({7}))), ours=(7,))[1]
        == []
    )


def test_engines_are_found_even_if_judging_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(*_anything: object) -> None:
        raise RecursionError

    monkeypatch.setattr("disagg_cluster.discovery.discovery_loop.RoleResolver.resolve", stumbles)

    assert after_some_looks(FixedFinder(server(Markers())))[1] == ["vllm-1"]
