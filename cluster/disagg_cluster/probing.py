"""Probes workers on threads: all that were healthy a moment ago at once, any other by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from disagg_cluster.glance import plainly_well
from disagg_cluster.life import Health
from disagg_cluster.readiness import ProbeResult, Target

Probe = Callable[[Target, int, float, frozenset[int]], ProbeResult]
"""As `readiness.probe`."""

# A healthy worker answers in a few milliseconds; whoever takes longer is probed by itself.
_PATIENCE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Wanted:
    target: Target
    session: int
    proven: frozenset[int]
    result: asyncio.Future[ProbeResult]


class Probing:
    """Probes as they are asked for; made and used inside one running loop.

    Args:
        probe: Looks at one worker.
        probe_seconds: The deadline of one probe.
        workers: How many may be probed at a time: one that does not answer delays no other.
    """

    def __init__(self, probe: Probe, probe_seconds: float, workers: int) -> None:
        self._probe = probe
        self._probe_seconds = probe_seconds
        # Beside one for each worker: a glance, and one that begins before it has ended.
        self._executor = ThreadPoolExecutor(workers + 2, thread_name_prefix="probe")
        self._waiting: list[_Wanted] = []

    def probe(
        self, target: Target, session: int, proven: frozenset[int]
    ) -> asyncio.Future[ProbeResult]:
        """Probe a worker; `proven` is what the last healthy probe of its process proved."""
        loop = asyncio.get_running_loop()
        wanted = _Wanted(target, session, proven, loop.create_future())
        if not proven:
            self._probe_alone(wanted)
        else:
            if not self._waiting:
                loop.call_soon(self._glance)
            self._waiting.append(wanted)
        return wanted.result

    def close(self) -> None:
        """End; waits for the probes on their way."""
        self._executor.shutdown()

    def _glance(self) -> None:
        batch, self._waiting = self._waiting, []
        workers = [(wanted.target, wanted.proven) for wanted in batch]
        loop = asyncio.get_running_loop()
        glance = loop.run_in_executor(self._executor, plainly_well, workers, _PATIENCE_SECONDS)
        glance.add_done_callback(partial(self._glanced, batch))

    def _glanced(self, batch: Sequence[_Wanted], glance: asyncio.Future[tuple[bool, ...]]) -> None:
        if glance.cancelled():
            return  # with the loop, and so is whoever waits
        # One that failed says nothing of anybody; a probe will tell whom it failed on.
        seen = (False,) * len(batch) if glance.exception() else glance.result()
        for wanted, well in zip(batch, seen, strict=True):
            if not well:
                self._probe_alone(wanted)
            elif not wanted.result.done():
                healthy = ProbeResult(Health.HEALTHY, "healthy", wanted.proven)
                wanted.result.set_result(healthy)

    def _probe_alone(self, wanted: _Wanted) -> None:
        arguments = wanted.target, wanted.session, self._probe_seconds, wanted.proven
        loop = asyncio.get_running_loop()
        probe = loop.run_in_executor(self._executor, self._probe, *arguments)
        probe.add_done_callback(partial(_pass_on, wanted.result))


def _pass_on(result: asyncio.Future[ProbeResult], probe: asyncio.Future[ProbeResult]) -> None:
    if result.done():
        return
    if probe.cancelled():
        result.cancel()
    elif error := probe.exception():
        result.set_exception(error)
    else:
        result.set_result(probe.result())
