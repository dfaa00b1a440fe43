"""What the daemon does all the time beside its workers, each part in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


class Parts:
    """Coroutines that run for ever; one that ends has failed."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self, *parts: Coroutine[None, None, None]) -> AsyncIterator[None]:
        """Run them until the block ends."""
        self._tasks = [asyncio.create_task(part) for part in parts]
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what has ended one of them."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
