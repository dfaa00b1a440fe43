"""Tests that are told as a story on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")

LONG_SECONDS = 30.0


def told(story: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a story: it is run on a loop of its own."""

    @functools.wraps(story)
    def tell(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(story(*args, **kwargs))

    return tell


@contextlib.asynccontextmanager
async def running(*forever: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run what runs for ever until the block ends; what ends by an error raises it."""
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
    """Wait until something holds, and fail if it never does."""
    end = time.monotonic() + LONG_SECONDS
    while not holds():
        assert time.monotonic() < end, f"{what} never came true"
        await asyncio.sleep(0.01)
