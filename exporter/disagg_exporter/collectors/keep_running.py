"""Keeps running what ought to run for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from disagg_exporter.collectors.backoff import Backoff
from disagg_exporter.collectors.health import CollectorHealth

STEADY_SECONDS = 5.0
"""What has run for so long is well again."""


async def keep_running(
    run: Callable[[], Coroutine[None, None, None]],
    health: CollectorHealth,
    *,
    backoff: Backoff = Backoff(0.5),  # noqa: B008 - frozen
    steady_seconds: float = STEADY_SECONDS,
) -> None:
    """Run a task that ought never to end, and anew after a pause when it does; until cancelled.

    Args:
        run: Begins the task; it may be begun again after it has ended in any way.
        health: Told when it fails, and when it has run for a while again.
        backoff: The pauses.
        steady_seconds: How long that while is.
    """
    while True:
        task = asyncio.ensure_future(run())
        try:
            done, _ = await asyncio.wait([task], timeout=steady_seconds)
            if not done:
                health.succeed()
                await asyncio.wait([task])
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        # Asked of the task, not awaited: one that was cancelled from within must not cancel us.
        error = None if task.cancelled() else task.exception()
        health.fail(error if isinstance(error, Exception) else "it has ended by itself")
        await asyncio.sleep(backoff.seconds(health.failures))
