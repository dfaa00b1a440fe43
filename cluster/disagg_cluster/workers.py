"""The crew: all workers of the node, started together and stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from disagg_cluster.keeper import Keeper
from disagg_cluster.life import StartRequested, StopRequested
from disagg_cluster.posts import OnChange, Post, Probe, Surroundings
from disagg_cluster.readiness import probe as probe_worker
from disagg_exporter.model import EnginePage, WorkerStatus

# What the kernel may take to end a killed group, beyond the deadlines of its policy.
_KILL_SECONDS = 5.0


class Crew:
    """The node's workers; made, used and stopped inside one running loop.

    Args:
        posts: The workers, by different names.
        on_change: Told of every change, see `OnChange`.
        page_of: The last metrics page of a worker; a drain is over when a page made after its
            begin shows no request.
        health_seconds: How often each worker is probed.
        probe_seconds: The deadline of one probe.
        environment: What the workers inherit; ours by default.
        probe, clock, wall, jitter, log: Seams; see `Surroundings`.
    """

    def __init__(
        self,
        posts: Sequence[Post],
        on_change: OnChange,
        page_of: Callable[[str], EnginePage | None],
        *,
        health_seconds: float = 1.0,
        probe_seconds: float = 1.0,
        environment: Mapping[str, str] | None = None,
        probe: Probe = probe_worker,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        log: logging.Logger | None = None,
    ) -> None:
        # One thread each: a worker that does not answer must not delay the look at the others.
        self._executor = ThreadPoolExecutor(max(len(posts), 1), thread_name_prefix="probe")
        around = Surroundings(
            on_change=on_change,
            page_of=page_of,
            probe=probe,
            executor=self._executor,
            environment=os.environ if environment is None else environment,
            health_seconds=health_seconds,
            probe_seconds=probe_seconds,
            clock=clock,
            wall=wall,
            jitter=jitter,
            log=log or logging.getLogger(__name__),
        )
        self._keepers = tuple(Keeper(post, around) for post in posts)
        self._stopping = False

    async def start(self) -> None:
        """Start all workers at once; returns when they run, long before they are ready."""
        for keeper in self._keepers:
            if self._stopping:
                return
            keeper.tell(StartRequested())
            await asyncio.sleep(0)

    async def stop(self, drain: bool = True) -> tuple[str, ...]:
        """Drain, end and if need be kill all workers; returns the names of those still there.

        Only a process stuck in the kernel can still be there. Called again with `drain` false
        meanwhile, it waits for no more requests.
        """
        self._stopping = True
        for keeper in self._keepers:
            keeper.tell(StopRequested(drain))
        await asyncio.gather(*(_ended(keeper) for keeper in self._keepers))
        for keeper in self._keepers:
            await keeper.close()
        self._executor.shutdown()
        return tuple(k.post.name for k in self._keepers if not k.ended.is_set())

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Every worker as the metrics page shows it, in the order given."""
        return tuple(keeper.status() for keeper in self._keepers)


async def _ended(keeper: Keeper) -> None:
    policy = keeper.post.policy
    seconds = policy.drain_seconds + policy.stop_seconds + policy.leftover_seconds
    try:
        async with asyncio.timeout(seconds + _KILL_SECONDS):
            await keeper.ended.wait()
    except TimeoutError:
        return
