"""The looks at one worker, by themselves."""

from __future__ import annotations

import asyncio
import logging
import time

from disagg_cluster.host.descriptor_reserve import DescriptorReserve
from disagg_cluster.life import Health, Life, Presence, WorkerState
from disagg_cluster.lookout import Lookout
from disagg_cluster.posts import Surroundings
from disagg_cluster.readiness import ProbeResult, Target
from disagg_cluster.supervisor.retried import SupervisionHealth

HEALTH_SECONDS = 0.005
READY = Life(WorkerState.READY, presence=Presence.RUNNING)


def test_no_probe_follows_the_one_that_was_waited_for_at_the_end() -> None:
    """Not even if the next was already due: whoever would take its result is gone."""
    probes: list[asyncio.Future[ProbeResult]] = []
    log = logging.getLogger("test")

    async def story() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def probe(
            _target: Target, _session: int, _proven: frozenset[int]
        ) -> asyncio.Future[ProbeResult]:
            probes.append(loop.create_future())
            begun.set()
            return probes[-1]

        around = Surroundings(
            on_change=lambda *_: None,
            page_of=lambda _worker: None,
            record=lambda: None,
            probe=probe,
            environment={},
            health_seconds=HEALTH_SECONDS,
            clock=time.monotonic_ns,
            wall=time.time,
            jitter=lambda: 0.0,
            log=log,
            supervision=SupervisionHealth(log),
            reserve=DescriptorReserve(0),
        )
        lookout = Lookout("w", around, lambda: READY, lambda _event: None)
        lookout.begin(7, Target(1, "tiny"), 0.0)
        await begun.wait()
        # Timers go off in their order: when this one does, the next look has been due.
        await asyncio.sleep(4 * HEALTH_SECONDS)
        closing = asyncio.ensure_future(lookout.close())
        await asyncio.sleep(0)
        probes[0].set_result(ProbeResult(Health.HEALTHY, "healthy"))
        await closing

    asyncio.run(story())

    assert len(probes) == 1
