"""Tasks that should never end keep running, and errors of the loop's callbacks are reported."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from disagg_exporter.collectors import Backoff, CallbackErrors, CollectorHealth, keep_running

LOG = logging.getLogger("test")
AT_ONCE = Backoff(0.001, 0.001)


class Fails:
    """A task that ends in one way after the other, and then runs."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.begun = 0
        self.running = asyncio.Event()
        self._ends = list(ends)

    async def run(self) -> None:
        self.begun += 1
        if self._ends:
            end = self._ends.pop(0)
            if end is not None:
                raise end
            return
        self.running.set()
        await asyncio.Event().wait()


async def kept(task: Fails, health: CollectorHealth) -> None:
    """Keep it running until it is healthy."""
    keeping = asyncio.create_task(
        keep_running(task.run, health, backoff=AT_ONCE, steady_seconds=0.01)
    )
    async with asyncio.timeout(20):
        await task.running.wait()
        assert task.begun == 1 or not health.ok
        while not health.ok or not health.tried:
            await asyncio.sleep(0.001)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


def test_a_task_that_ends_in_any_way_is_reported_and_restarted() -> None:
    async def story() -> None:
        health = CollectorHealth("task:x", LOG)
        ends = (ValueError(), None, OSError(24, "no files"), asyncio.CancelledError(), KeyError())
        task = Fails(*ends)
        await kept(task, health)
        assert task.begun == len(ends) + 1
        assert health.status().unexpected_failures == 2

    asyncio.run(story())


def test_a_running_task_is_healthy() -> None:
    async def story() -> None:
        health, task = CollectorHealth("task:x", LOG), Fails()
        await kept(task, health)
        assert not health.has_failed

    asyncio.run(story())


def test_cancelling_ends_the_task() -> None:
    async def story() -> bool:
        ended = asyncio.Event()

        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        keeping = asyncio.create_task(keep_running(run, CollectorHealth("task:x", LOG)))
        await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return ended.is_set()

    assert asyncio.run(story())


def test_a_callbacks_error_is_logged_once_and_shown_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def trip() -> None:
        raise ValueError("s3cret")

    async def story() -> None:
        loop, errors = asyncio.get_running_loop(), CallbackErrors(LOG, quiet_seconds=0.2)
        errors.watch(loop)
        assert errors.collectors() == ()
        loop.call_soon(trip)
        loop.call_soon(trip)
        await asyncio.sleep(0)
        [status] = errors.collectors()
        assert (status.collector, status.success) == ("callbacks", False)
        assert status.unexpected_failures == 2
        async with asyncio.timeout(20):
            while not errors.collectors()[0].success:
                await asyncio.sleep(0.01)

    asyncio.run(story())
    assert caplog.text.count("it fails with ValueError") == 1
    assert "s3cret" not in caplog.text
