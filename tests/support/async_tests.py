"""Tests written as coroutines on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")

LONG_SECONDS = 30.0


def async_test(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function, run on a separate loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@contextlib.asynccontextmanager
async def running(*forever: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless coroutines until the block ends; an error of one is raised."""
    tasks = [asyncio.create_task(each) for each in forever]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(holds: Callable[[], bool], what: str = "it") -> None:
    """Wait until a condition holds; fail if it never does."""
    end = time.monotonic() + LONG_SECONDS
    while not holds():
        assert time.monotonic() < end, f"{what} never came true"
        await asyncio.sleep(0.01)
