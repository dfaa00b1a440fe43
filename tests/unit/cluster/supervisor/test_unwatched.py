"""How long no probe of a worker has ended, by which a watchdog detects stuck supervision."""

import asyncio
import threading
from pathlib import Path

from disagg_cluster.lifecycle.state import Health
from disagg_cluster.supervisor.health.readiness import ProbeResult, ProbeTarget
from support.supervisors import READY, RunningSupervisor, supervised, tiny_spec


def test_unwatched_seconds_grow_while_a_probe_hangs(tmp_path: Path) -> None:
    goes_on = threading.Event()
    goes_on.set()

    def probe(
        _target: ProbeTarget, _pid: int, _seconds: float, _known: frozenset[int]
    ) -> ProbeResult:
        goes_on.wait()
        return ProbeResult(Health.HEALTHY, "healthy")

    async def story(harness: RunningSupervisor) -> None:
        await harness.until(READY)
        goes_on.clear()
        try:
            while harness.supervisor.unwatched_seconds < 0.3:
                await asyncio.sleep(0.01)
        finally:
            goes_on.set()
        while harness.supervisor.unwatched_seconds > 0.2:
            await asyncio.sleep(0.01)

    supervised([tiny_spec(tmp_path)], story, probe=probe)
