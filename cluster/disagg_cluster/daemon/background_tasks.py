"""What the daemon does all the time beside its workers, each part in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass

from disagg_exporter.collectors import CollectorHealth, keep_running
from disagg_exporter.model import CollectorStatus


@dataclass(frozen=True, slots=True)
class Part:
    """Something that runs for ever, and how to begin it, again if need be."""

    name: str
    run: Callable[[], Coroutine[None, None, None]]


class Parts:
    """Parts of a daemon; one that ends in any way is said, shown, and begun again."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._health: tuple[CollectorHealth, ...] = ()

    @contextlib.asynccontextmanager
    async def running(self, parts: Sequence[Part]) -> AsyncIterator[None]:
        """Run them until the block ends."""
        self._health = tuple(
            CollectorHealth(f"task:{part.name}", self._log, recovered="runs again")
            for part in parts
        )
        tasks = [
            asyncio.create_task(keep_running(part.run, health), name=part.name)
            for part, health in zip(parts, self._health, strict=True)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collectors `task:<part>` of those that have ever failed."""
        return tuple(health.status() for health in self._health if health.has_failed)
