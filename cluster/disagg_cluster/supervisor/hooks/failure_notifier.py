"""Notifies a command or URL of each failure, one at a time; never holds up supervision."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from disagg_cluster.config import NodeConfig
from disagg_cluster.lifecycle.failures import Failure, payload
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus

COLLECTOR = "failure_hook"
MOST_WAITING = 32
"""How many failures may wait; the oldest are dropped for new ones."""


class HookError(DisaggError):
    """A failure could not be delivered; the text says why, without what may be a secret."""


class Delivery(Protocol):
    """Delivers one failure to its destination."""

    async def deliver(self, data: bytes) -> None:
        """Deliver within the deadline, or raise `HookError`."""


class FailureNotifier:
    """A bounded queue of failures, and the one delivery under way.

    Args:
        delivery: How they are delivered; not at all if None.
        events: Which kinds are delivered; others are dropped.
        node, cluster: The names that each is reported with.
        log: Logs when deliveries begin to fail, and when they succeed again.
    """

    def __init__(
        self,
        delivery: Delivery | None,
        events: Collection[str],
        node: str,
        cluster: str,
        log: logging.Logger,
    ) -> None:
        self._delivery = delivery
        self._events = frozenset(events)
        self._node = node
        self._cluster = cluster
        self._health = CollectorHealth(COLLECTOR, log, failing="a failure was not delivered: ")
        self._counts: Counter[str] = Counter(delivered=0, failed=0, dropped=0)
        self._waiting: asyncio.Queue[Failure] = asyncio.Queue(MOST_WAITING)

    def notify(self, failure: Failure) -> None:
        """Queue a failure for delivery, if it is of a kind that is delivered."""
        if self._delivery is None or failure.event not in self._events:
            return
        if self._waiting.full():
            self._waiting.get_nowait()
            self._counts["dropped"] += 1
        self._waiting.put_nowait(failure)

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            failure = await self._waiting.get()
            assert self._delivery is not None, "nothing waits without a delivery"
            outcome = "failed"
            with self._health.round():
                await self._delivery.deliver(payload(failure, self._node, self._cluster))
                outcome = "delivered"
            self._counts[outcome] += 1

    def counts(self) -> Mapping[str, int]:
        """The numbers of failures delivered, failed, and dropped for newer ones."""
        return {} if self._delivery is None else dict(self._counts)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of the last delivery."""
        return () if self._delivery is None else (self._health.status(),)


def failure_notifier(
    config: NodeConfig, log_path: Path, environ: Mapping[str, str], log: logging.Logger
) -> FailureNotifier:
    """Return the notifier that the node file configures; without a hook it does nothing.

    Args:
        config: The node file.
        log_path: Where the output of a command goes.
        environ: Ours, of which a command gets what it needs.
        log: Logs when deliveries begin to fail.
    """
    hook, names = config.on_worker_failure, (config.node, config.cluster)
    if hook is None:
        return FailureNotifier(None, (), *names, log)
    if hook.command is None:
        # A node without a URL need not load OpenSSL.
        from disagg_cluster.supervisor.hooks.post_delivery import PostDelivery

        post = PostDelivery(hook.url or "", hook.deadline_seconds)
        return FailureNotifier(post, hook.events, *names, log)
    from disagg_cluster.supervisor.hooks.command_delivery import CommandDelivery

    command = CommandDelivery(hook.command, environ, log_path, hook.deadline_seconds)
    return FailureNotifier(command, hook.events, *names, log)
