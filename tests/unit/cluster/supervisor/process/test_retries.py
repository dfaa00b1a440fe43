"""Actions that are retried until they succeed: a recurring failure is logged once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from disagg_cluster.supervisor.process import retries
from disagg_cluster.supervisor.process.retries import (
    DescriptorReserve,
    Retrier,
    SupervisionHealth,
)


@pytest.mark.parametrize("cause", [ValueError("ours"), OSError(24, "Too many open files"), "no"])
def test_an_action_that_keeps_failing_is_logged_once(
    cause: Exception | str, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = SupervisionHealth(logging.getLogger("test"))

    supervision.failed("decode-0: restart", cause)
    said = len(caplog.records)
    for _ in range(50):
        supervision.failed("decode-0: restart", cause)

    assert 1 <= said <= 2
    assert len(caplog.records) == said
    assert not supervision.status().success
    assert supervision.status().unexpected_failures == 51 * isinstance(cause, ValueError)


def test_an_action_is_retried_even_if_reporting_its_failure_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "RETRY_SECONDS", 0.01)
    health, done = SupervisionHealth(logging.getLogger("test")), asyncio.Event()

    def without_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(health, "failed", without_memory)
    attempts = iter((MemoryError(), None))

    def deed() -> None:
        if (error := next(attempts)) is not None:
            raise error
        done.set()

    async def story() -> None:
        retrier = Retrier("w", health, DescriptorReserve(0))
        with pytest.raises(MemoryError):
            retrier.run("what must be done", deed)
        async with asyncio.timeout(10):
            await done.wait()

    asyncio.run(story())
