"""The health loop of one worker, by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from disagg_cluster.lifecycle.state import (
    Event,
    Health,
    Lifecycle,
    Presence,
    Probed,
    Unwatched,
    WorkerState,
)
from disagg_cluster.supervisor import health_loop as lookout_module
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget
from disagg_cluster.supervisor.health_loop import HealthLoop
from disagg_cluster.supervisor.ownership.control_groups import ControlGroups
from disagg_cluster.supervisor.process.retries import DescriptorReserve, SupervisionHealth
from disagg_cluster.supervisor.worker_spec import SupervisorContext

HEALTH_SECONDS = 0.005
READY = Lifecycle(WorkerState.READY, presence=Presence.RUNNING)


def around(
    probe: Callable[[ProbeTarget, int, frozenset[int]], asyncio.Future[ProbeResult]],
) -> SupervisorContext:
    log = logging.getLogger("test")
    return SupervisorContext(
        on_change=lambda *_: None,
        page_of=lambda _worker: None,
        record=lambda: None,
        probe=probe,
        child_environment=dict,
        health_seconds=HEALTH_SECONDS,
        clock=time.monotonic_ns,
        wall=time.time,
        jitter=lambda: 0.0,
        log=log,
        supervision=SupervisionHealth(log),
        reserve=DescriptorReserve(0),
        groups=ControlGroups(None, "", log),
        worked_ns=lambda _worker: None,
        on_failure=lambda _failure: None,
    )


def test_no_probe_starts_after_the_one_that_close_waited_for() -> None:
    """Not even if the next was already due: nothing would receive its result."""
    probes: list[asyncio.Future[ProbeResult]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def probe(
            _target: ProbeTarget, _session: int, _proven: frozenset[int]
        ) -> asyncio.Future[ProbeResult]:
            probes.append(loop.create_future())
            begun.set()
            return probes[-1]

        lookout = HealthLoop("w", around(probe), lambda: READY, lambda _event: None)
        lookout.begin(7, ProbeTarget(1, "tiny"), 0.0)
        await begun.wait()
        # Timers fire in order: when this one does, the next probe has been due.
        await asyncio.sleep(4 * HEALTH_SECONDS)
        closing = asyncio.ensure_future(lookout.close())
        await asyncio.sleep(0)
        probes[0].set_result(ProbeResult(Health.HEALTHY, "healthy"))
        await closing

    asyncio.run(story())

    assert len(probes) == 1


def test_a_probe_after_a_gap_is_preceded_by_an_unwatched_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Probes that failed before the daemon was suspended do not add up with later ones."""
    monkeypatch.setattr(lookout_module, "LATE_SECONDS", 0.1)
    told: list[Event] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        probed = asyncio.Event()

        def probe(
            _target: ProbeTarget, _session: int, _proven: frozenset[int]
        ) -> asyncio.Future[ProbeResult]:
            result = loop.create_future()
            result.set_result(ProbeResult(Health.NO_ANSWER, "silent"))
            loop.call_soon(loop.call_soon, probed.set)
            return result

        lookout = HealthLoop("w", around(probe), lambda: READY, told.append)
        lookout.begin(7, ProbeTarget(1, "tiny"), 0.0)
        await probed.wait()
        probed.clear()
        seen = len(told)
        time.sleep(0.3)  # as a daemon that is stopped by a signal
        await probed.wait()
        assert [type(event) for event in told[seen : seen + 2]] == [Unwatched, Probed]
        await lookout.close()

    asyncio.run(story())
